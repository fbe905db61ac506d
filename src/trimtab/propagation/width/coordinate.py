"""The coordinate check of muP: does every size keep its order when the net becomes wider?"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from scipy.stats import t as student
from torch import nn

from trimtab.norms._arguments import require_function, require_module, require_positive, require_whole
from trimtab.norms._passes import own
from trimtab.propagation._checks import PropagationError, require_sequence
from trimtab.propagation.width._exponents import QUANTITIES, exponents, role
from trimtab.propagation.width._first_steps import Loss, MakeOptimizer, Sizes, first_steps, loss_of, optimizer_of, sites

CONFIDENCE = 0.95
SHOWN_AT = {"activation": 0, "gradient": 0, "update": 1}  # a change is shown at the last step


@dataclass(frozen=True, slots=True)
class SiteScaling:
    """One size of one layer against the width.

    Attributes:
        name: The layer.
        role: "input", "hidden", "output" or "fixed", by which sides of its weight grow.
        quantity: "activation" (root mean square of the output), "change" (of it since the start), "gradient" (of the
            loss by the output) or "update" (of the weight in one step).
        step: After how many steps.
        sizes: A row for each width, a column for each seed.
        slope: Of log size against log width, mean over seeds.
        low: Lower end of its 95 % interval over seeds; -inf for one seed.
        high: Upper end.
        standard: What standard parametrization predicts; None for nothing.
        mup: What muP predicts.
    """

    name: str
    role: str
    quantity: str
    step: int
    sizes: tuple[tuple[float, ...], ...]
    slope: float
    low: float
    high: float
    standard: float | None
    mup: float | None


@dataclass(frozen=True, slots=True)
class CoordinateCheck:
    """Every size of every layer; prints as a table.

    Attributes:
        widths: The widths.
        sites: All sizes at all steps.
        steps: How many steps were made.
        optimizer: "adam", "sgd" or "own".
    """

    widths: tuple[int, ...]
    sites: tuple[SiteScaling, ...]
    steps: int
    optimizer: str

    def find(self, name: str, quantity: str, step: int | None = None) -> SiteScaling:
        """One size of one layer.

        Args:
            name: The layer.
            quantity: "activation", "change", "gradient" or "update".
            step: After how many steps; None for the one that the table shows.

        Returns:
            The size.

        Raises:
            KeyError: If there is none.
        """
        step = SHOWN_AT.get(quantity, self.steps) if step is None else step
        for site in self.sites:
            if (site.name, site.quantity, site.step) == (name, quantity, step):
                return site
        raise KeyError((name, quantity, step))

    @property
    def shown(self) -> tuple[SiteScaling, ...]:
        """Activation and gradient at the start, the first update, and the change over all steps."""
        return tuple(s for s in self.sites if s.step == SHOWN_AT.get(s.quantity, self.steps))

    @property
    def nearest(self) -> str:
        """Whose changes the net's are nearer to, "standard" or "muP"; "" where nothing is predicted."""
        known = [s for s in self.shown if s.quantity == "change" and s.standard is not None and s.mup is not None]
        if not known:
            return ""
        standard = sum((s.slope - s.standard) ** 2 for s in known if s.standard is not None)
        mup = sum((s.slope - s.mup) ** 2 for s in known if s.mup is not None)
        return "muP" if mup < standard else "standard"

    def __str__(self) -> str:
        width = max([5, *(len(site.name) for site in self.sites)])
        lines = [
            f"slope of log size against log width, widths {', '.join(map(str, self.widths))}, {self.steps} steps",
            f"{'layer':<{width}}  {'role':<6}  {'size':<10}  {'step':>4}  {'slope':>6}  {'95 % interval':>16}  {'standard':>8}  {'muP':>5}",
        ]
        lines += [
            f"{s.name:<{width}}  {s.role:<6}  {s.quantity:<10}  {s.step:>4}  {s.slope:>6.2f}  "
            f"{f'{s.low:.2f} to {s.high:.2f}':>16}  {_number(s.standard):>8}  {_number(s.mup):>5}"
            for s in self.shown
        ]
        if self.nearest:
            lines.append(f"the changes scale nearer to {self.nearest} parametrization")
        return "\n".join(lines)


def coordinate_check(
    make_model: Callable[[int], nn.Module],
    widths: Sequence[int],
    batch: Any,
    *,
    steps: int = 3,
    lr: float,
    optimizer: str | MakeOptimizer = "adam",
    loss: Loss | None = None,
    seeds: int = 3,
) -> CoordinateCheck:
    """How activations, gradients and updates of every layer scale with the width over the first steps.

    The coordinate check of Yang et al. 2022 (arXiv:2203.03466, appendix D.1): nets of growing width make a few steps on
    one batch. In muP every layer's output changes by an amount that does not depend on the width (slope 0), so that one
    learning rate serves all; in standard parametrization it grows, hidden layers under Adam like n. For each layer and
    size, log size is fitted against log width for each seed; slope and interval are over seeds. The exponents beside
    them hold for wide nets to first order in the learning rate: take a small one. muP's are those of table 3 of the
    paper; an output multiplier in place of a small output weight has an update of slope 0 there.

    PyTorch's random state is left alone.

    Args:
        make_model: Makes the net of a width, called as make_model(width) with PyTorch's generator seeded.
        widths: Two or more, such as powers of two.
        batch: Inputs and targets, or what `loss` takes.
        steps: How many steps.
        lr: The learning rate.
        optimizer: "adam" (with eps 1e-16) or "sgd", with one learning rate, or a function of model and lr that
            returns an optimizer; a function with an attribute `rule` "adam" or "sgd" gets that rule's exponents.
        loss: Called as loss(model, batch); by default cross-entropy for targets that are whole numbers, else half
            the mean squared error.
        seeds: How many nets of each width.

    Returns:
        The table.

    Raises:
        PropagationError: If the widths, the nets or the batch do not fit, or a size is not finite.
    """
    require_function("make_model", make_model, "make_model(width)")
    require_whole(1, steps=steps, seeds=seeds)
    require_positive(lr=lr)
    for width in require_sequence("widths", widths, "whole numbers"):
        require_whole(1, **{"a number of widths": width})
    sorted_widths = tuple(sorted(set(widths)))
    if len(sorted_widths) < 2:
        raise PropagationError(
            f"widths is {list(widths)}; two or more different whole numbers are needed, such as [64, 128, 256]"
        )
    if loss is not None:
        require_function("loss", loss, "loss(model, batch)")
    make_optimizer, loss = optimizer_of(optimizer), loss_of(batch) if loss is None else loss
    rule = optimizer if isinstance(optimizer, str) else getattr(optimizer, "rule", None)
    runs: list[list[Sizes]] = []
    ends: list[dict[str, nn.Module]] = []
    with torch.random.fork_rng():
        for width in sorted_widths:
            row = []
            for seed in range(seeds):
                torch.manual_seed(seed)
                model = make_model(width)
                require_module("what make_model returns", model)
                _require_trainable(model)
                row.append(first_steps(model, own(batch), steps, make_optimizer(model, lr), loss))
            runs.append(row)
            ends.append(sites(model))
    roles = _roles(ends[0], ends[-1])
    rows = [
        _row(
            key,
            roles[key[1]],
            sorted_widths,
            [[sizes.get(key, math.nan) for sizes in row] for row in runs],
            rule,
            roles,
        )
        for key in sorted(runs[0][0], key=lambda k: (QUANTITIES.index(k[0]), k[2], list(roles).index(k[1])))
    ]
    return CoordinateCheck(sorted_widths, tuple(rows), steps, rule or "own")


def _require_trainable(model: nn.Module) -> None:
    for name, parameter in model.named_parameters():
        if nn.parameter.is_lazy(parameter) or parameter.is_meta:
            raise PropagationError(f"make_model gives a net with {name} without values; give it sizes and a device")
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise PropagationError("make_model gives a net without a parameter that trains; the check needs one")


def _roles(small: dict[str, nn.Module], large: dict[str, nn.Module]) -> dict[str, str]:
    if small.keys() != large.keys() or not small:
        odd = sorted(small.keys() ^ large.keys())
        raise PropagationError(
            f"the layers of make_model's nets are not the same for all widths: {', '.join(odd) or 'there are none'}; only "
            f"their sizes may differ"
        )
    return {name: role(small[name], large[name]) for name in small}


def _row(
    key: tuple[str, str, int],
    part: str,
    widths: tuple[int, ...],
    sizes: list[list[float]],
    rule: str | None,
    roles: dict[str, str],
) -> SiteScaling:
    quantity, name, step = key
    values = np.array(sizes, dtype=np.float64)
    with np.errstate(divide="ignore"):
        logs = np.log(values)
    x = np.log(np.array(widths, dtype=np.float64))
    x -= x.mean()
    with np.errstate(invalid="ignore"):  # a frozen layer's update is 0
        slopes = x @ logs / (x @ x)
    mean = float(slopes.mean()) if np.isfinite(slopes).all() else math.nan
    reach = math.inf
    if len(slopes) > 1 and math.isfinite(mean):
        quantile = float(student.ppf(0.5 + 0.5 * CONFIDENCE, len(slopes) - 1))
        reach = quantile * float(slopes.std(ddof=1)) / math.sqrt(len(slopes))
    standard, mup = exponents(quantity, part, rule, "hidden" in roles.values())
    return SiteScaling(
        name, part, quantity, step, tuple(tuple(row) for row in values.tolist()), mean, mean - reach, mean + reach, standard, mup
    )  # fmt: skip


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
