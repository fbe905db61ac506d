"""What single layers are given and return while a loss is computed, for those that alone hold their parameters."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor, nn

from trimtab._torch import has_hooks
from trimtab.curvature.problem import Problem


@dataclass
class LayerCall:
    """A layer that was called once, with one tensor.

    Attributes:
        module: The layer.
        given: Its input.
        output: Its output, with its graph.
        parameters: Its own chosen parameters: place among all chosen ones, name in the layer, value.
    """

    module: nn.Module
    given: Tensor
    output: Tensor
    parameters: Sequence[tuple[int, str, Tensor]]


@dataclass
class Heard:
    """The layers of one forward pass.

    Attributes:
        calls: In the order of the calls.
        unclear: Places of parameters whose layer was called several times, with more than one tensor, or shares them.
    """

    calls: list[LayerCall] = field(default_factory=list)
    unclear: set[int] = field(default_factory=set)

    def clear(self) -> list[LayerCall]:
        """Layers that alone hold each of their parameters, and were called once."""
        times: dict[int, int] = {}
        for call in self.calls:
            for place, _, _ in call.parameters:
                times[place] = times.get(place, 0) + 1
        doubtful = self.unclear | {place for place, count in times.items() if count > 1}
        return [call for call in self.calls if not doubtful.intersection(place for place, _, _ in call.parameters)]


@contextmanager
def hearing(problem: Problem, point: tuple[Tensor, ...]) -> Iterator[Heard]:
    """Hear the layers of the forward passes in the block.

    What follows a layer gets a copy of its output: an activation in place would overwrite what was heard.

    Args:
        problem: The problem.
        point: The parameters, leaves, that losses in the block are computed with.

    Yields:
        What is heard.
    """
    heard = Heard()
    places = {id(leaf): i for i, leaf in enumerate(point)}
    foreign = {module for module in problem.shadow.model.modules() if has_hooks(module)}

    def hear(module: nn.Module, inputs: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> Any:
        own = [(places[id(p)], name, p) for name, p in module._parameters.items() if p is not None and id(p) in places]
        if not own:
            return None
        plain = len(inputs) == 1 and not kwargs and isinstance(inputs[0], Tensor) and isinstance(output, Tensor)
        if not plain or module in foreign or not output.requires_grad:
            heard.unclear |= {place for place, _, _ in own}
            return None
        heard.calls.append(LayerCall(module, inputs[0].detach(), output, own))
        return output.clone()

    handles = [m.register_forward_hook(hear, with_kwargs=True) for m in problem.shadow.model.modules() if m._parameters]
    try:
        yield heard
    finally:
        for handle in handles:
            handle.remove()
