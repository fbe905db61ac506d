"""Setting weights on a copy, and handing them over when all went well."""

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.initialization._predicting import predicted
from trimtab.initialization._weights import Shape, drawn, reasons_to_leave
from trimtab.initialization.report import Change, Initialized
from trimtab.norms._arguments import refuse, require_module
from trimtab.propagation._probe import copy_to_measure, require_batch
from trimtab.report.prediction import Prediction


@dataclass
class Setting:
    """A model whose weights are being set.

    Attributes:
        model: The user's model.
        work: The copy on which it is done.
        generator: Of the draws, on the CPU.
        left: What stays as it is, with the reason.
        before: The prediction before.
        notes: What the reader should know.
        changes: What was set.
    """

    model: nn.Module
    work: nn.Module
    generator: torch.Generator
    left: dict[str, str]
    before: Prediction | None
    notes: list[str]
    parameters: dict[str, Tensor]
    changes: dict[str, Change] = field(default_factory=dict)
    touched: list[str] = field(default_factory=list)

    def may(self, name: str | None) -> bool:
        """Whether a weight is to be set and has not been set yet."""
        return name is not None and name not in self.left and name not in self.changes

    @torch.no_grad()
    def draw(self, name: str, shape: Shape, gain: float, orthogonal: bool) -> Tensor:
        """Give a weight new values of mean square gain^2 / fan_in."""
        weight = self.parameters[name]
        weight.copy_(drawn(shape, weight, orthogonal, self.generator) * (gain / shape.fan_in**0.5))
        return weight

    @torch.no_grad()
    def set_bias(self, name: str, told: str | None, variance: float = 0.0) -> None:
        """Draw the bias beside a weight from N(0, variance), if there is one that trains."""
        bias_name = told or (name.removesuffix("weight") + "bias" if name.endswith("weight") else "")
        bias = self.parameters.get(bias_name)
        if bias is None or bias.dim() != 1 or not bias.requires_grad or bias_name in self.touched:
            return
        drawn_ = torch.randn(bias.shape, generator=self.generator, dtype=torch.float64) if variance else 0.0
        bias.copy_(torch.as_tensor(drawn_ * variance**0.5))
        self.touched.append(bias_name)

    def note(self, name: str, shape: Shape, activation: str, note: str) -> None:
        """Write down what has become of a weight."""
        old, new = self.model.get_parameter(name).detach().double(), self.parameters[name].detach().double()
        gain = float((shape.fan_in * new.square().mean()).sqrt())
        self.changes[name] = Change(
            name, float(old.std(correction=0)), float(new.std(correction=0)), gain, activation, note
        )
        self.touched.append(name)

    @torch.no_grad()
    def hand_over(self, method: str, batch: Any) -> Initialized:
        """Give the user's model its new values, and report."""
        users = dict(self.model.named_parameters())
        for name in self.touched:
            users[name].copy_(self.parameters[name])
        unused = {
            name: "no linear map of this batch uses it"
            for name, p in users.items()
            if p.dim() > 1 and name not in self.changes and name not in self.left
        }
        after, why_not = (None, "") if batch is None else predicted(self.model, batch)
        if why_not:
            self.notes.append(f"no prediction after: {why_not}")
        left = tuple((self.left | unused).items())
        return Initialized(method, tuple(self.changes.values()), left, tuple(self.notes), self.before, after)


def start(model: nn.Module, batch: Any, generator: torch.Generator | None) -> Setting:
    """Look at a model before anything is set.

    Args:
        model: The user's model.
        batch: One batch, or None.
        generator: The user's, or None for one seeded by one number of PyTorch's global generator.

    Returns:
        The setting.
    """
    require_module("model", model)
    if generator is None:
        generator = torch.Generator().manual_seed(int(torch.randint(2**62, ())))
    elif not isinstance(generator, torch.Generator) or generator.device.type != "cpu":
        refuse("generator", generator, "a torch.Generator on the CPU, or None, is needed")
    if batch is not None:
        require_batch(batch, finite=True)
    work = copy_to_measure(model)
    before, why_not = (None, "") if batch is None else predicted(model, batch)
    notes = [f"no prediction before: {why_not}"] if why_not else []
    return Setting(model, work, generator, reasons_to_leave(model), before, notes, dict(work.named_parameters()))
