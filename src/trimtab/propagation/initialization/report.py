"""What an initializer has done, and how far it helped."""

from dataclasses import dataclass

from trimtab.propagation.initialization._measured import LayerMoments


@dataclass(frozen=True, slots=True)
class Change:
    """One weight that was set.

    Attributes:
        name: The parameter.
        old_std: Its standard deviation before.
        new_std: And now.
        gain: sigma_w, the root of fan_in times the mean square of the weights.
        activation: What its input has passed since the last linear map, norm or join; "" for nothing.
        note: What else was taken into account.
    """

    name: str
    old_std: float
    new_std: float
    gain: float
    activation: str
    note: str


@dataclass(frozen=True, slots=True)
class Initialized:
    """The report of an initializer; prints as a table.

    Attributes:
        method: What was done.
        changes: Every weight that was set, in the order in which they run.
        left: Every other matrix or kernel, with the reason.
        notes: What the whole net should be told.
        before: Signal and gradient on the batch before; empty without a batch.
        after: The same afterwards.
    """

    method: str
    changes: tuple[Change, ...]
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    before: tuple[LayerMoments, ...]
    after: tuple[LayerMoments, ...]

    def __getitem__(self, name: str) -> Change:
        for change in self.changes:
            if change.name == name:
                return change
        raise KeyError(name)

    def __str__(self) -> str:
        width = max([9, *(len(change.name) for change in self.changes)])
        acts = max([5, *(len(change.activation) for change in self.changes)])
        lines = [self.method]
        if self.changes:
            lines.append(f"{'parameter':<{width}}  {'after':<{acts}}  {'std':>9} -> {'new std':<9}  {'gain':>6}  note")
        lines += [
            f"{c.name:<{width}}  {c.activation or '-':<{acts}}  {c.old_std:>9.4g} -> {c.new_std:<9.4g}  {c.gain:>6.4g}  {c.note}".rstrip()
            for c in self.changes
        ]
        lines += [f"left alone: {name} ({reason})" for name, reason in self.left]
        lines += [f"note: {note}" for note in self.notes]
        if len(self.before) > 1:
            lines.append(_range("signal, first and last layer", [(m[0].signal, m[-1].signal) for m in self._both]))
            lines.append(
                _range("gradient, first and last layer", [(m[0].gradient, m[-1].gradient) for m in self._both])
            )
        return "\n".join(lines)

    @property
    def _both(self) -> tuple[tuple[LayerMoments, ...], tuple[LayerMoments, ...]]:
        return self.before, self.after


def _range(what: str, ends: list[tuple[float, float]]) -> str:
    (a, b), (c, d) = ends
    return f"{what} (mean square): {a:.3g} and {b:.3g} before, {c:.3g} and {d:.3g} now"
