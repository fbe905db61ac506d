"""Whether a fold is exact: the modules before and after it on the same numbers, in float64."""

import copy
import math
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.errors import NormalizationError
from trimtab.norms._kinds import BATCH_KINDS, CONVOLUTIONS, TRANSPOSED, kind_of
from trimtab.norms._passes import difference, outcome, tensors
from trimtab.norms.folding._plan import Plan, Refused

_ROWS = 16
_SQUARE = 256  # up to this width the middle axis of the inputs is as long as the last


def verify_pair(model: nn.Module, plan: Plan) -> tuple[float, float]:
    """Compare the modules of a fold with what they replace, on random inputs with an offset.

    The arithmetic is float64, the parameters are the stored ones: what is seen is the rounding of the new parameters
    and nothing else.

    Args:
        model: The model before the fold.
        plan: The fold.

    Returns:
        The largest difference, and what rounding may make of it: the root of the dtype's eps times the largest output.

    Raises:
        Refused: If the modules fail on the inputs.
    """
    worst = allowed = 0.0
    for chain in plan.chains:
        old = [_float64_copy(model.get_submodule(name)) for name in chain]
        new = [_float64_copy(plan.new[name]) for name in chain]
        x = _inputs(old)
        try:
            with torch.no_grad():
                before, after = _through(old, x), _through(new, x)
        except Exception as error:
            raise Refused(f"{' and '.join(chain)} cannot be run on their own: {error}") from error
        largest, _, _ = difference(before, after)
        worst = max(worst, largest)
        allowed = max(allowed, tolerance(model.get_submodule(chain[0]), before))
    return worst, allowed


def verify_model(original: nn.Module, folded: nn.Module, example: Any) -> tuple[float, float]:
    """Compare two models on an example, with the same random numbers for both.

    Args:
        original: The model as it was; a copy, since a forward pass may change it.
        folded: The model with its folds; a copy too.
        example: What they are called with.

    Returns:
        The largest difference of the outputs, infinite where the folded model fails, and what rounding may make of it.

    Raises:
        NormalizationError: If there is nothing to compare, since the model returns no floating tensor or no finite number.
    """
    before = outcome(original, example)
    told = tensors(before)
    if not told:
        raise NormalizationError(
            f"example makes the model return no tensor of floating numbers ({type(before).__name__}), which shows nothing; "
            "fold a model that returns scores, or leave example out"
        )
    if not any(bool(t.isfinite().any()) for t in told):
        raise NormalizationError(
            "example makes the model return no finite number, which shows nothing; an example like its real inputs is needed"
        )
    try:
        after = outcome(folded, example)
    except Exception:  # the model reads something of a layer that is no longer there
        return math.inf, 0.0
    largest, _, _ = difference(before, after)
    return largest, tolerance(original, before)


def tolerance(module: nn.Module, output: Any) -> float:
    """How far rounding may move an output: the root of eps of the parameters' dtype, times the largest value.

    Halfway between rounding and the size of a fold that is wrong: in float32 3.5e-4 of the largest value, where a wrong
    border or a forgotten transpose shows at 1e-2 and more.

    Args:
        module: Whose parameters or buffers are stored in that dtype.
        output: The output.

    Returns:
        The largest difference that is put down to rounding.
    """
    dtypes = [t.dtype for t in (*module.parameters(), *module.buffers()) if t.is_floating_point()]
    eps = max((torch.finfo(dtype).eps for dtype in dtypes), default=torch.finfo(torch.float32).eps)
    finite = (t.detach()[t.isfinite()] for t in tensors(output))  # an infinite value must not excuse the others
    largest = max((float(t.abs().max()) for t in finite if t.numel()), default=0.0)
    return math.sqrt(eps) * max(largest, 1e-30)


def _float64_copy(module: nn.Module) -> nn.Module:
    return copy.deepcopy(module).cpu().double()


def _through(chain: list[nn.Module], x: Tensor) -> Tensor:
    for module in chain:
        x = module(x)
    return x


def _inputs(chain: list[nn.Module]) -> Tensor:
    """Returns inputs that show every tap and every border: a few positions more than kernel and padding need."""
    generator = torch.Generator().manual_seed(0)
    sized = next(m for m in chain if isinstance(m, (nn.Linear, *CONVOLUTIONS, *TRANSPOSED)))
    shape: tuple[int, ...]
    if isinstance(sized, nn.Linear) and any(kind_of(m) in BATCH_KINDS for m in chain):
        shape = (_ROWS, sized.in_features)
    elif isinstance(sized, nn.Linear):  # where a norm takes another axis for the last one, the middle one shows it
        shape = (2, sized.in_features if sized.in_features <= _SQUARE else 3, sized.in_features)
    else:
        space = []
        for axis, (kernel, dilation) in enumerate(zip(sized.kernel_size, sized.dilation, strict=True)):
            pad = 0 if isinstance(sized.padding, str) else sized.padding[axis]  # a transposed one takes padding off
            extent = 3 if isinstance(sized, TRANSPOSED) else dilation * (kernel - 1) + 3
            space.append(extent + 2 * pad if isinstance(sized, TRANSPOSED) else max(extent, pad + 2))
        shape = (2, sized.in_channels, *space)
    return 1.5 * torch.randn(shape, generator=generator, dtype=torch.float64) + 0.5
