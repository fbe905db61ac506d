"""Which rule an operation follows."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from trimtab.errors import UsageError
from trimtab.prediction.state import NoRuleError, State

Gradients = Mapping[int, State]


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor in the arguments of an operation.

    Attributes:
        id: Which tensor.
        shape: Its shape.
        known: Whether it belongs to the model (a parameter, a constant) and not to the signal.
        real: Whether its numbers are floating ones.
    """

    id: int
    shape: tuple[int, ...]
    known: bool = False
    real: bool = True


@dataclass(slots=True)
class Call:
    """One operation that ran, and what is known of its tensors.

    Attributes:
        name: The operation without its overload: "aten.addmm"; one that works in place has the name of its twin.
        function: The operation itself.
        args: Its positional arguments, tensors as `Value`.
        kwargs: Its named arguments.
        outputs: Its floating outputs; None in the place of others.
        states: The state of each tensor in the arguments, by id; a rule for the way back finds the outputs' too.
        shown: Second moments of the gradient at inputs that a rule for the way back has passed over, to where they came from.
        partials: Mean squared derivative by each argument, where the operation is pointwise over one Gaussian.
        repeats: Of an index, by id: how often the entry of a mean place is taken, and the share of pairs of rows that take the
            same one.
    """

    name: str
    function: Any
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    outputs: tuple[Value | None, ...]
    states: dict[int, State] = field(default_factory=dict)
    partials: dict[int, float] = field(default_factory=dict)
    shown: dict[int, float] = field(default_factory=dict)
    repeats: dict[int, tuple[float, float]] = field(default_factory=dict)

    def state(self, value: Any) -> State:
        """The state of an argument or an output.

        Args:
            value: One of `args` or `outputs`.

        Returns:
            Its state.

        Raises:
            NoRuleError: If it is no tensor with a state.
        """
        if not isinstance(value, Value) or value.id not in self.states:
            raise NoRuleError(f"{self.name} of something that has no second moment")
        return self.states[value.id]

    def argument(self, position: int, name: str, default: Any = None) -> Any:
        """An argument by position or name."""
        if position < len(self.args):
            return self.args[position]
        return self.kwargs.get(name, default)


Forward = Callable[[Call], "State | Sequence[State | None]"]
Backward = Callable[[Call, "Sequence[State | None]"], Gradients]


@dataclass(frozen=True, slots=True)
class Rule:
    """How one operation transports moments.

    Attributes:
        forward: The states of the outputs from those of the inputs.
        backward: From the gradients at the outputs, those at the inputs, by `Value.id`.
    """

    forward: Forward
    backward: Backward


_RULES: dict[str, Rule] = {}


def register_rule(*operations: Any, forward: Forward, backward: Backward) -> Rule:
    """Say what an operation does to the moments of signal and gradient; a rule registered later takes its place.

    Either function raises `NoRuleError` for arguments that it has no answer for; then the measured value passes.

    Args:
        *operations: Of PyTorch, `torch.ops.aten.mm` or its name "aten.mm", or a custom one; overloads share a rule.
        forward: Takes the `Call`, gives the state of the output or a list of them.
        backward: Takes the `Call` and the gradient at each output (None where none arrives), gives the gradients at the
            inputs by `Value.id`.

    Returns:
        The rule.

    Raises:
        UsageError: If no operation is named, or one is not a name or an operation of PyTorch.
    """
    if not operations:
        raise UsageError("register_rule needs an operation, such as torch.ops.aten.mm")
    rule = Rule(forward, backward)
    for operation in operations:
        name = operation if isinstance(operation, str) else plain_name(operation)
        if "." not in name:
            raise UsageError(f"operation {operation!r} must be torch.ops.aten.mm or a name such as 'aten.mm'")
        _RULES[name] = rule
    return rule


def rule_for(name: str) -> Rule | None:
    """The rule of an operation, None if it has none of its own."""
    return _RULES.get(name)


def plain_name(operation: Any) -> str:
    """The name aten.relu of aten.relu.default and of aten.relu_: namespace and name without overload and underscore."""
    schema = getattr(operation, "_schema", None)
    text = schema.name if schema is not None else getattr(operation, "_qualified_op_name", str(operation))
    name = text.replace("::", ".")
    return name[:-1] if name.endswith("_") and not name.endswith("__") else name
