"""`trimtab.predict`: what theory expects at every site of a network, beside what one pass measures."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.parameter import is_lazy

from trimtab._setup import Setup
from trimtab._unchanged import unchanged
from trimtab.errors import UsageError
from trimtab.prediction.attention import attentions
from trimtab.prediction.engine import backward, forward
from trimtab.prediction.judging import judged
from trimtab.prediction.listening import Listener
from trimtab.prediction.measuring import likened, measured_state
from trimtab.prediction.patterns import blended
from trimtab.prediction.trace import Tracer
from trimtab.recording.walk import tensors
from trimtab.report.prediction import Prediction

SEED = 20160617  # of the random cotangent; any number would do


def predict(model: nn.Module, batch: Any, *, loss: Callable[[Any], Tensor] | None = None) -> Prediction:
    """Predict the second moment of signal and gradient at the output of every module, and measure it.

    One batch goes forward and backward through the model as it is, in the mode it is in. Every operation that runs is followed by
    a rule: the signal from the batch's moments and the weights (length and correlation maps, Poole et al. 2016, arXiv:1606.05340),
    the gradient back from the output by the adjoint (Schoenholz et al. 2017, arXiv:1611.01232), each with the scatter that a
    finite width allows (Hanin & Nica 2018, arXiv:1812.05994). Afterwards, also after an error, model, gradients, buffers, modes and
    random states are bit-identical.

    With a batch of one sample nothing is known of how samples correlate; what depends on it is a guess, and a note says so.

    Args:
        model: Any module.
        batch: What it is called with: a tensor, a tuple of positional arguments, or a mapping of named ones.
        loss: `loss(output)` gives the scalar that is differentiated; by default the output is multiplied with fixed random numbers
            of unit variance.

    Returns:
        The prediction; printing it gives a table.

    Raises:
        UsageError: The model is no module, has lazy modules or NaN weights, gives no floating output, or the loss no scalar.
    """
    checked(model)

    def run() -> Tensor | None:
        if isinstance(batch, Mapping):
            output = model(**batch)
        else:
            output = model(*batch) if isinstance(batch, (tuple, list)) else model(batch)
        return None if loss is None else _scalar(loss(output))

    return _predicted(model, run, batch)


def predict_setup(setup: Setup) -> Prediction:
    """As `predict`, for a setup: its model in training mode, its first batch and its loss.

    Args:
        setup: The run; no step is taken.

    Returns:
        The prediction.
    """
    checked(setup.model)
    with unchanged(setup.model, used_by=(setup.loss, setup.batches)) as kept:
        setup.model.train()
        batch = next(setup.stream(on_pass=kept.add_data))
        return _predicted(setup.model, lambda: setup.compute_loss(batch), batch)


def _predicted(model: nn.Module, run: Callable[[], Tensor | None], batch: Any) -> Prediction:
    tracer = Tracer()
    listener = Listener(model, tracer)
    held = [t for t in tensors(batch) if isinstance(t, Tensor)]
    with unchanged(model, *held) as kept:
        kept.add(*model.parameters(), *model.buffers())
        try:
            with _plain_kernels(model), listener.attached(), torch.enable_grad():
                with tracer:
                    scalar = run()
                _send_back(model, listener, scalar, held)
            answered = bool(listener.outputs)
        finally:
            listener.outputs = []  # a hook on an output that knows the output would keep the whole graph for good
    if not answered:
        raise UsageError(
            "the model gave no floating tensor that depends on the batch; predict needs an output that has a second moment"
        )
    single = bool(held) and all(t.ndim == 0 or t.shape[0] == 1 for t in held)
    return concluded(type(model).__name__, tracer, listener, single=single)


@np.errstate(all="ignore")
def concluded(name: str, tracer: Tracer, listener: Listener, *, single: bool) -> Prediction:
    """Propagate moments along the operations of a pass that has run.

    Args:
        name: The network.
        tracer: The operations.
        listener: What the modules gave and got back.
        single: Whether the batch has one sample.

    Returns:
        The prediction.

    Raises:
        Exception: What went wrong while the pass was written down.
    """
    if tracer.fault is not None:
        raise tracer.fault
    calls = blended(tracer.calls)
    flow = forward(calls, tracer.sources, tracer.values, {h.value.id for h in listener.heard})
    seen = {h.value.id: h.backward for h in listener.heard if h.backward is not None}
    backward(flow, calls, listener.cotangents, seen)
    notes = ("The batch has one sample: how samples correlate is not predicted.",) if single else ()
    return Prediction(
        name,
        judged(listener.heard, flow, [s.second_moment for s in tracer.sources.values()]),
        dict(flow.uncovered),
        len(tracer.calls),
        notes,
        attentions(calls, flow, tracer.values, listener.heard),
    )


def _send_back(model: nn.Module, listener: Listener, scalar: Tensor | None, held: list[Tensor]) -> None:
    """One backward pass, with nothing left in any `.grad`."""
    leaves = [p for p in (*model.parameters(), *held) if p.requires_grad and p.is_leaf]
    if not leaves:
        return
    if scalar is not None:
        if scalar.requires_grad:
            torch.autograd.grad(scalar, leaves, allow_unused=True)
        return
    generator = torch.Generator().manual_seed(SEED)
    roots, cotangents = [], []
    for output, value in listener.outputs:
        if output.requires_grad:
            drawn = torch.randn(output.shape, generator=generator, dtype=torch.float32).to(output.device, output.dtype)
            roots.append(output)
            cotangents.append(drawn)
            listener.cotangents[value.id] = likened(measured_state(drawn), drawn)
    given = dict(listener.cotangents)
    if roots:
        torch.autograd.grad(roots, leaves, cotangents, allow_unused=True)
    listener.cotangents = given  # not what reaches an output by way of another one


@contextmanager
def _plain_kernels(model: nn.Module) -> Iterator[None]:
    """Attention and recurrent layers in operations that a dispatch mode sees."""
    fast = torch.backends.mha.get_fastpath_enabled()
    with ExitStack() as stack:
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        if any(isinstance(m, nn.RNNBase) for m in model.modules()):
            stack.enter_context(torch.backends.mkldnn.flags(enabled=False, allow_tf32=None))
        torch.backends.mha.set_fastpath_enabled(False)
        try:
            yield
        finally:
            torch.backends.mha.set_fastpath_enabled(fast)


def checked(model: Any) -> None:
    """Refuse a model of which nothing can be foretold.

    Args:
        model: The model.

    Raises:
        UsageError: It is no module, has lazy modules or NaN weights.
    """
    if not isinstance(model, nn.Module):
        raise UsageError(f"model must be a torch.nn.Module, but it is a {type(model).__name__}")
    for name, parameter in model.named_parameters():
        if is_lazy(parameter):
            raise UsageError(f"parameter {name} has no shape yet; call the model on one batch before predict")
        if not parameter.is_meta and not bool(torch.isfinite(parameter.detach()).all()):
            raise UsageError(
                f"parameter {name} holds NaN or infinite values, from which nothing can be predicted; initialize it anew"
            )


def _scalar(value: Any) -> Tensor:
    if not isinstance(value, Tensor) or value.numel() != 1:
        kind = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else f"a {type(value).__name__}"
        raise UsageError(f"loss must give a scalar tensor, but it gave {kind}; reduce it with .mean()")
    return value
