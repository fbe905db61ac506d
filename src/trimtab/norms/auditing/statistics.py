"""How many values a statistic has, and what eps does to it."""

import math
from collections.abc import Iterator

import torch
from torch import nn

from trimtab.norms._groups import group_count
from trimtab.norms._kinds import BATCH_KINDS, kind_of, names_of
from trimtab.norms.auditing._fact import Fact, View, called, running
from trimtab.norms.auditing._observe import elements

LEAST_OF_A_BATCH = 9  # up to 8 the running variance is more than 1/8 above the one that training divides by, m/(m-1)
LEAST_OF_A_ROW = 4  # below, the output has hardly a degree of freedom left: two are gone with mean and variance
LARGEST_EPS_SHARE = 0.1  # of the variance: above, the output's standard deviation is below 0.95


def statistic_facts(view: View) -> Iterator[Fact]:
    """Elements per statistic, group counts, sharing, and eps against dtype and variance.

    Args:
        view: What to look at.

    Yields:
        The facts.
    """
    for name, norm in view.norms.items():
        yield from _elements(view, name, norm)
        yield from _groups(name, norm)
        yield from _sharing(view, name, norm)
        yield from _eps(view, name, norm)


def _elements(view: View, name: str, norm: nn.Module) -> Iterator[Fact]:
    kind = kind_of(norm)
    seen = view.seen.get(name)
    count = elements(norm, None if seen is None else seen.shape)
    if count is None or kind == "frozen_batch_norm":
        return
    of_batch = kind in BATCH_KINDS
    least = LEAST_OF_A_BATCH if of_batch else LEAST_OF_A_ROW
    shape = "" if seen is None else f", input {seen.shape}"
    text = (
        f"{called(name)}: {count} {'value' if count == 1 else 'values'} per statistic{shape}, at least {least} expected"
    )
    if count < least:
        text += f": {_what_follows(kind or '', count)}"
    yield Fact("elements-per-statistic", name, count, f">= {least}", text, count < least)


def _what_follows(kind: str, count: int) -> str:
    if kind in BATCH_KINDS:
        if count == 1:
            return "training raises; give batches of more than one sample (drop_last=True for a last batch of one)"
        if count == 2:
            return "in training the output is +1 and -1 times the weight, whatever the input is"
        return f"the running variance is {count / (count - 1):.3g} times the one that training divides by"
    if count == 1 and kind == "instance_norm":
        return "the forward pass raises, or the input is erased; a channel needs more than one position"
    if count == 1:
        return (
            "only the sign of the input is left"
            if kind == "rms_norm"
            else "the input is erased, the output is the bias"
        )
    return "hardly a degree of freedom of the input is left"


def _groups(name: str, norm: nn.Module) -> Iterator[Fact]:
    if not isinstance(norm, nn.GroupNorm):
        return
    groups, channels = norm.num_groups, norm.num_channels
    divides = groups > 0 and channels % groups == 0
    text = f"{called(name)}: {groups} groups for {channels} channels"
    text += "" if divides else f", which they do not divide: the forward pass raises; {group_count(channels)} would do"
    yield Fact("group-divisibility", name, groups, f"a divisor of {channels}", text, not divides)


def _sharing(view: View, name: str, norm: nn.Module) -> Iterator[Fact]:
    names = names_of(view.model, norm)
    seen = view.seen.get(name)
    calls = 1 if seen is None else seen.calls
    shared = len(names) > 1 or calls > 1
    text = f"{called(name)} stands {len(names)} times in the model"
    text += "" if seen is None else f" and is called {calls} times in a forward pass"
    if shared and kind_of(norm) in BATCH_KINDS:
        text += ": its running statistics mix the inputs of all its places"
    yield Fact("shared-norm", name, max(len(names), calls), "1", text, shared)


def _eps(view: View, name: str, norm: nn.Module) -> Iterator[Fact]:
    seen = view.seen.get(name)
    tensors = (*norm.parameters(recurse=False), *norm.buffers(recurse=False))
    dtype = seen.dtype if seen is not None else next((t.dtype for t in tensors if t.is_floating_point()), torch.float32)
    if not dtype.is_floating_point:
        return
    given = norm.eps
    eps = torch.finfo(torch.float64 if dtype == torch.float64 else torch.float32).eps if given is None else float(given)  # type: ignore[arg-type]
    least = least_eps(dtype)
    text = f"{called(name)}: eps {eps:.3g}" + (
        " (None: that of float32, in half precision too)" if given is None else ""
    )
    low = f"{text}, at least {least:.2g} expected in {dtype}"
    if eps < least:
        low += ": below, eps vanishes or 1/sqrt(eps) overflows, and a constant input gives nan"
    yield Fact("eps-and-dtype", name, eps, f">= {least:.3g}", low, eps < least)
    variance, source = _variance_of(view, name, norm)
    single = seen is not None and elements(norm, seen.shape) == 1 and kind_of(norm) != "rms_norm"
    if variance is None or not math.isfinite(variance) or single:  # one value has no variance, whatever eps is
        return
    most = LARGEST_EPS_SHARE * variance
    high = f"{text}, at most {LARGEST_EPS_SHARE:g} of {source} {variance:.3g} expected"
    if eps > most:
        high += f": the output has a standard deviation of {math.sqrt(variance / (variance + eps)):.2g} instead of 1"
    yield Fact("eps-and-variance", name, eps, f"<= {most:.3g}", high, eps > most)


def least_eps(dtype: torch.dtype) -> float:
    """The smallest eps that does its work in a dtype.

    Half its smallest positive number vanishes when stored, and 1/sqrt(eps) must not overflow: PyTorch computes
    half-precision input in float32, but batch_norm keeps 1/sqrt(var + eps) in the input's dtype.

    Args:
        dtype: A floating dtype.

    Returns:
        2.98e-8 for float16; for the others the smallest normal number.
    """
    info = torch.finfo(dtype)
    smallest = info.smallest_normal * info.eps  # subnormal
    return max(smallest / 2, 1.0 / info.max**2) if dtype == torch.float16 else info.smallest_normal


def _variance_of(view: View, name: str, norm: nn.Module) -> tuple[float | None, str]:
    if name in view.seen:
        what = "the mean square" if kind_of(norm) == "rms_norm" else "the variance"
        return view.seen[name].variance, f"{what} of its input on the example (median)"
    if (statistics := running(norm)) is not None and not statistics[1].is_meta:
        return float(statistics[1].float().median()), "its running variance (median)"
    return None, ""
