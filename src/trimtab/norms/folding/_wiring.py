"""Who follows whom in a model: traced by torch.fx where that works, seen on an example elsewhere; nothing is guessed."""

import inspect
from collections import Counter, defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from trimtab.norms.folding._observed import observe
from trimtab.norms.folding._trace import read_graph, regions
from trimtab.norms.folding._wire import Wire


@dataclass(slots=True)
class Wiring:
    """What is known of a model's wiring.

    Attributes:
        wires: By module name, where the module is called once by whatever calls it, and the call was seen.
        problems: Why nothing can be said of a module, by its name.
        ranks: Numbers of axes with which each module's input was seen on the example.
        example: Whether there was an example.
        observed: Modules whose wire was seen on the example alone, not in a trace.
    """

    wires: dict[str, Wire] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    ranks: dict[str, set[int]] = field(default_factory=lambda: defaultdict(set))
    example: bool = False
    observed: set[str] = field(default_factory=set)


def wire(model: nn.Module, example: Any | None = None) -> Wiring:
    """Find out who follows whom.

    The whole model is traced if possible. What cannot be traced (control flow on data) is opened up: each part of it
    is traced by itself, and then an example is needed to show that the part is only ever called as a whole. On an
    example, every module must be called as often as the trace says, or nothing is said about it. What no trace reached
    is known from the example: there every use of every module's output is seen.

    Args:
        model: The model. Its own code is run; hand over a copy.
        example: What the model is called with, as for `call`; None for none.

    Returns:
        The wiring.
    """
    wiring = Wiring(example=example is not None)
    given = _given(model, example) if example is not None else set()
    observed: dict[str, Wire] = {}
    calls: Counter[str] | None = None
    direct: set[str] = set()
    if example is not None:
        observed, calls, wiring.ranks, direct = observe(model, example)
    for region, graph, why in regions(model, given):
        if graph is None:
            continue
        prefix = f"{region}." if region else ""
        for name, found in read_graph(model, graph, prefix).items():
            if region and calls is None:
                wiring.problems[name] = f"the model cannot be traced ({why}); give an example"
            elif isinstance(found, str):
                wiring.problems[name] = found
            elif calls is not None and not calls[name]:
                wiring.problems[name] = "it is not called on the example"
            elif calls is not None and calls[name] != calls[region]:
                told = f"on the example it is called {calls[name]} times, where its forward was traced {calls[region]} times"
                wiring.problems[name] = told
            elif name in direct:
                wiring.problems[name] = "its parameters are also used outside of its own forward"
            else:
                wiring.wires[name] = found
    wiring.observed = observed.keys() - wiring.wires.keys() - wiring.problems.keys()
    wiring.wires |= {name: observed[name] for name in wiring.observed}
    return wiring


def _given(model: nn.Module, example: Any) -> set[str]:
    """Returns the names of the root's parameters that the example gives."""
    arguments = (
        ((), dict(example))
        if isinstance(example, Mapping)
        else (example if isinstance(example, tuple) else (example,), {})
    )
    try:
        return set(inspect.signature(model.forward).bind(*arguments[0], **arguments[1]).arguments)
    except (TypeError, ValueError):
        return set()
