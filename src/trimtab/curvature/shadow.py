"""A copy of a model that losses are computed with: a snapshot, so that nothing of the user's can be moved."""

import copy
import random
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.utils import parametrizations
from torch.nn.utils.weight_norm import WeightNorm

from trimtab._distributed import is_spread, is_wrapper
from trimtab._torch import force_eager, is_compiled, without_autocast
from trimtab._unchanged import unchanged
from trimtab.curvature._checks import CurvatureError

BATCH_NORMS = (nn.modules.batchnorm._BatchNorm, nn.modules.instancenorm._InstanceNorm)
DROPOUTS = (nn.modules.dropout._DropoutNd,)


def unwrapped(model: nn.Module) -> nn.Module:
    """The model inside a wrapper for data parallelism, or inside what `torch.compile` returned."""
    while is_wrapper(model) or type(model).__name__ == "OptimizedModule":
        model = model.module if is_wrapper(model) else model._orig_mod  # type: ignore[assignment]
    return model


def copied_in_mode(model: nn.Module, training: bool, dtype: torch.dtype) -> nn.Module:
    """A copy of a model with parameters of its own, in one mode, whose batch normalizations keep no running statistics in training.

    Args:
        model: The model; it is not changed, and gradients it holds are not copied.
        training: Training or evaluation mode of every module.
        dtype: What floating parameters and buffers become.

    Returns:
        The copy; no parameter of it asks for a gradient.

    Raises:
        CurvatureError: It cannot be copied, or a tensor has no value or is spread over ranks.
    """
    memo: dict[int, Any] = {}  # deepcopy finds our copies there, made without gradient and in the dtype that is wanted
    for name, tensor in (*model.named_parameters(), *model.named_buffers()):
        if nn.parameter.is_lazy(tensor) or tensor.is_meta:
            raise CurvatureError(f"{name} has no value yet; run a batch through the model, or load its state, first")
        if is_spread(tensor):
            raise CurvatureError(
                f"{name} is spread over ranks (a DTensor); curvature needs whole parameters, as DDP has them"
            )
        own = tensor.detach().to(dtype if tensor.is_floating_point() else tensor.dtype, copy=True)
        memo[id(tensor)] = nn.Parameter(own, requires_grad=False) if isinstance(tensor, nn.Parameter) else own
    try:
        shadow = copy.deepcopy(model, memo)
    except Exception as error:
        raise CurvatureError(
            f"the model cannot be copied ({type(error).__name__}: {error}); tensors with a history, such as old-style "
            "weight_norm leaves behind, go with a forward pass under torch.no_grad()"
        ) from error
    shadow.train(training)
    for module in shadow.modules():
        if isinstance(module, BATCH_NORMS) and module.training and module.track_running_stats:
            module.track_running_stats = False
            for buffer in module._buffers:
                module._buffers[buffer] = None
    _plain_weight_norms(shadow)
    return shadow


def _plain_weight_norms(model: nn.Module) -> None:
    """Let a copy compute its weight norms by plain operations.

    The double backward of torch's fused `_weight_norm` takes |v| for a constant (torch 2.13), so that the Hessian is wrong and
    not even symmetric.

    Args:
        model: The copy, whose modules and hooks are ours.
    """
    for module in model.modules():
        if isinstance(module, parametrizations._WeightNorm):
            module.forward = partial(_weight_norm, dim=module.dim)  # type: ignore[method-assign]
        for hook in module._forward_pre_hooks.values():
            if isinstance(hook, WeightNorm):
                hook.compute_weight = partial(_weight_norm_of, hook)  # type: ignore[method-assign]


def _weight_norm(weight_g: Tensor, weight_v: Tensor, dim: int) -> Tensor:
    return weight_v * (weight_g / torch.norm_except_dim(weight_v, 2, dim))


def _weight_norm_of(hook: Any, module: nn.Module) -> Tensor:
    return _weight_norm(getattr(module, f"{hook.name}_g"), getattr(module, f"{hook.name}_v"), hook.dim)


@contextmanager
def differentiating() -> Iterator[None]:
    """Gradients on and autocast off, wherever the caller is: backward passes are computations like others.

    Yields:
        Nothing.
    """
    with torch.inference_mode(False), torch.enable_grad(), without_autocast():
        yield


class _Losses(nn.Module):
    """`loss(model, batch)` as a module, so that `functional_call` can exchange the parameters."""

    def __init__(self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor]) -> None:
        super().__init__()
        self.model = model
        self.loss = loss

    def forward(self, batch: Any) -> Any:
        return self.loss(self.model, batch)


def _seed_all(seed: int) -> None:
    """Seed what a loss may draw from.

    Not by `torch.manual_seed`: where CUDA is not in use yet, that leaves a seed behind which is set when it comes into use, and half
    a millisecond of notes about who asked for it.
    """
    torch.default_generator.manual_seed(seed)
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.manual_seed_all(seed)
    np.random.seed(seed % 2**32)
    random.seed(seed)


class Shadow:
    """A snapshot of a model with its loss.

    Args:
        model: The model, as `unwrapped` gives it.
        loss: `loss(model, batch)` gives a scalar tensor.
        training: Training or evaluation mode.
        dtype: Of the computation.
    """

    def __init__(
        self, model: nn.Module, loss: Callable[[nn.Module, Any], Tensor], training: bool, dtype: torch.dtype
    ) -> None:
        self.model = copied_in_mode(model, training, dtype)
        self._losses = _Losses(self.model, loss)
        self._loss = loss
        self._compiled = is_compiled(model)
        self._held = False
        devices = {p.device.type for p in self.model.parameters()}
        self._fused_rnn = "cuda" in devices and any(isinstance(m, nn.RNNBase) for m in self.model.modules())

    def loss(self, parameters: dict[str, Tensor], batch: Any, seed: int) -> Any:
        """What the loss function returns for some values of the parameters.

        Args:
            parameters: By name; the others are the snapshot's.
            batch: A batch of our own.
            seed: Of every random number that is drawn.

        Returns:
            The loss, with its graph where gradients are enabled.
        """
        named = {f"model.{name}": value for name, value in parameters.items()}
        with self.surroundings():
            _seed_all(seed)
            return functional_call(self._losses, named, (batch,))

    @contextmanager
    def surroundings(self) -> Iterator[None]:
        """Plain attention, whose double backward there is; no autocast; compiled code eagerly; random states put back.

        Yields:
            Nothing.
        """
        if self._held:
            yield
            return
        fast = torch.backends.mha.get_fastpath_enabled()
        with ExitStack() as stack:
            # What the loss function takes from around it (a teacher, a generator) is put back as well.
            kept = stack.enter_context(unchanged(used_by=(self._loss,)))
            self._uses_others = not kept.stateless
            stack.enter_context(sdpa_kernel(SDPBackend.MATH))
            stack.enter_context(without_autocast())
            if self._fused_rnn:  # cuDNN's has no double backward
                stack.enter_context(torch.backends.cudnn.flags(enabled=False))
            stack.callback(torch.backends.mha.set_fastpath_enabled, fast)
            torch.backends.mha.set_fastpath_enabled(False)
            if self._compiled:
                force_eager(True, self)
                stack.callback(force_eager, False, self)
            yield

    @contextmanager
    def held(self) -> Iterator[None]:
        """One surroundings for several losses, a quarter of a millisecond less for each.

        Where the loss takes something with a state from around it, that is put back after each loss all the same.

        Yields:
            Nothing. Nothing of the user's may run inside but the loss.
        """
        with self.surroundings():
            self._held = not self._uses_others
            try:
                yield
            finally:
                self._held = False

    def active_dropouts(self) -> list[str]:
        """Names of the modules that draw a random mask."""
        return [name for name, m in self.model.named_modules() if isinstance(m, DROPOUTS) and m.training and m.p > 0]

    def active_batch_norms(self) -> list[str]:
        """Names of the batch normalizations that use the batch's own statistics."""
        return [
            name
            for name, m in self.model.named_modules()
            if isinstance(m, nn.modules.batchnorm._BatchNorm) and (m.training or m.running_mean is None)
        ]
