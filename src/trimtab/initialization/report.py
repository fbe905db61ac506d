"""What an initializer has done, and how far it helped."""

from dataclasses import dataclass

from trimtab.report.prediction import Prediction, Site
from trimtab.report.words import shortened


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
        before: Signal and gradient on the batch before, predicted and measured, as `trimtab.predict` gives them for the
            net without dropout; None without a batch.
        after: The same afterwards.
    """

    method: str
    changes: tuple[Change, ...]
    left: tuple[tuple[str, str], ...]
    notes: tuple[str, ...]
    before: Prediction | None
    after: Prediction | None

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
        return "\n".join([*lines, *self._ends()])

    def _ends(self) -> list[str]:
        """Signal and gradient at the first and the last layer that was set, before and now."""
        layers = [change.name.rpartition(".")[0] for change in self.changes]
        if self.after is None or not layers:
            return []
        column = f"{'predicted':>11}{'measured':>10}{'within':>8}"
        lines = ["", f"{'mean square':<22}{'before':^29}{'after':^29}".rstrip(), f"{'':<22}{column}{column}"]
        for what in ("signal", "gradient"):
            for layer in dict.fromkeys((layers[0], layers[-1])):
                found = [_row(_site(side, layer), what) for side in (self.before, self.after)]
                lines.append(f"{what:<9}{shortened(layer, 12):<13}{''.join(found)}".rstrip())
        return lines


def _site(prediction: Prediction | None, name: str) -> Site | None:
    return next((site for site in prediction or () if site.name == name), None)


def _row(site: Site | None, what: str) -> str:
    if site is None:
        return f"{'-':>11}{'-':>10}{'-':>8}"
    if what == "signal":
        predicted, measured, factor = site.forward, site.forward_measured, site.forward_tolerance
    else:
        predicted, measured, factor = site.backward, site.backward_measured, site.backward_tolerance
    return f"{predicted:>11.3g}{measured:>10.3g}{f'x{factor:.3g}':>8}"
