"""Recurrent layers that ran as one fused kernel: the same layer once more, step by step, beside the run.

A fused kernel (oneDNN's LSTM, cuDNN) shows neither its operations nor the gradient at a time step. The shadow is the same module on the same
input in plain operations, so that rules can follow them, and takes the gradient that came back to the real output.
"""

from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from trimtab.prediction.registry import Call
from trimtab.prediction.trace import Tracer
from trimtab.recording.walk import tensors

FUSED = ("aten.mkldnn_rnn_layer", "aten._cudnn_rnn", "aten.miopen_rnn", "aten._thnn_fused")
PLAIN = (nn.RNN, nn.LSTM, nn.GRU)


class Shadow:
    """A recurrent layer's call, step by step.

    Attributes:
        output: What it gave, with a graph of its own.
    """

    def __init__(self, output: Any, real: Sequence[Tensor], tracer: Tracer) -> None:
        self.output = output
        self._outputs = list(tensors(output))
        self._cotangents: list[Tensor | None] = [None] * len(self._outputs)
        for k, tensor in enumerate(real):
            if tensor.requires_grad and not tensor.is_leaf:
                tensor.register_hook(tracer.quietly(partial(self._keep, k)))  # type: ignore[no-untyped-call]

    def _keep(self, k: int, gradient: Tensor) -> None:
        before = self._cotangents[k]
        self._cotangents[k] = gradient.detach() if before is None else before + gradient.detach()

    def send_back(self, parameters: Sequence[Tensor]) -> None:
        """Take the gradient that has come to the real output back through the steps, and let go of the graph.

        Args:
            parameters: The layer's; nothing is left in their `.grad`.
        """
        pairs = [
            (o, g) for o, g in zip(self._outputs, self._cotangents, strict=True) if g is not None and o.requires_grad
        ]
        wanted = [p for p in parameters if p.requires_grad]
        self._outputs, self._cotangents, self.output = [], [], None
        if pairs and wanted:
            outputs, gradients = zip(*pairs, strict=True)
            torch.autograd.grad(outputs, wanted, gradients, allow_unused=True)


def shadow(module: nn.Module, args: tuple[Any, ...], output: Any, tracer: Tracer) -> Shadow | None:
    """Run a fused recurrent layer once more in plain operations, in place of the fused ones that the tracer wrote down.

    Args:
        module: The module.
        args: What it was called with, in order.
        output: What it gave.
        tracer: The operations so far; those of the fused kernels are taken out.

    Returns:
        The shadow, None where the layer is not torch's own or did not run fused.
    """
    fused = next((k for k, call in enumerate(tracer.calls) if call.name.startswith(FUSED)), None)
    if type(module) not in PLAIN or fused is None or not args or not isinstance(args[0], Tensor):
        return None
    del tracer.calls[fused:]
    device = args[0].device
    with (
        torch.random.fork_rng([device] if device.type == "cuda" else []),
        torch.backends.mkldnn.flags(enabled=False, allow_tf32=None),
        torch.backends.cudnn.flags(enabled=False),
        torch.enable_grad(),
        torch.autograd.graph.saved_tensors_hooks(
            Tensor.detach, _as_it_is
        ),  # in the place of a checkpoint's, which counts what is saved
    ):
        tracer.listening = True
        try:
            again = type(module).forward(module, *(a.detach() if isinstance(a, Tensor) else a for a in args))
        finally:
            tracer.listening = False
    real = list(tensors(output))
    for mine, theirs in zip(tensors(again), real, strict=True):
        value, name = tracer.find(mine), tracer.find(theirs)
        if value is not None and name is not None:
            tracer.calls.append(Call("aten.contiguous", None, (value,), {}, (name,)))
    return Shadow(again, real, tracer)


def _as_it_is(tensor: Tensor) -> Tensor:
    return tensor
