"""What is foretold of a network, site by site, beside what was measured."""

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from trimtab.report.figures import Profile

Odd = Literal["", "prediction", "measurement"]


@dataclass(frozen=True, slots=True)
class Site:
    """One module's output, or one time step of a recurrent layer.

    Attributes:
        name: The module; a later call of it is `name#2`, a time step `name[7]`.
        kind: Its class.
        depth: Its place in the order in which the sites ran, from 1.
        forward: Predicted second moment of the values, nan where it was not.
        forward_measured: The same, measured.
        forward_tolerance: Factor by which finite width may move it (3 sigma).
        backward: Predicted second moment of the gradient, nan where it was not.
        backward_measured: The same, measured.
        backward_tolerance: As for the values.
        covered: Whether rules alone lead here from the sites before.
        odd: Which of the two is out of place: "prediction" (the growth foretold is itself bad), "measurement" (it leaves
            the band), or neither.
        mean: Predicted mean of the values, nan where it was not.
        alike: Predicted correlation of two samples, E x x' over E x^2: 1 where all are the same; nan where it was not.
    """

    name: str
    kind: str
    depth: int
    forward: float
    forward_measured: float
    forward_tolerance: float
    backward: float = math.nan
    backward_measured: float = math.nan
    backward_tolerance: float = math.nan
    covered: bool = True
    odd: Odd = ""
    mean: float = math.nan
    alike: float = math.nan

    @property
    def forward_error(self) -> float:
        """log10 of measured over predicted second moment of the values."""
        return log_ratio(self.forward_measured, self.forward)

    @property
    def backward_error(self) -> float:
        """log10 of measured over predicted second moment of the gradient."""
        return log_ratio(self.backward_measured, self.backward)


@dataclass(frozen=True, slots=True)
class Attention:
    """What enters one softmax over the products of queries and keys.

    Independent queries and keys of unit variance give logits of variance d, and of variance 1 with the factor 1/sqrt(d)
    (Vaswani et al. 2017, arXiv:1706.03762, section 3.2.1).

    Attributes:
        name: The first site behind it, "" if none is.
        dimension: The head dimension d that the products are summed over.
        keys: How many keys there are to choose from.
        scale: The constant that the products are multiplied with on their way from queries and keys, nan where it is not one.
        variance: Predicted variance of the logits, before mask and bias of positions.
        variance_measured: The same, measured; nan in a fused kernel, which keeps the logits to itself.
        variance_tolerance: Factor by which finite width may move it (3 sigma).
        squares: Predicted sum of the squared weights of a query: 1 where one key has all of it.
        squares_measured: The same, measured; nan in a fused kernel.
        squares_uniform: The same for equal weights over the keys that the mask leaves.
        sources: The nearest sites in front of queries and keys.
    """

    name: str
    dimension: int
    keys: int
    scale: float
    variance: float
    variance_measured: float
    variance_tolerance: float
    squares: float
    squares_measured: float
    squares_uniform: float
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Prediction:
    """Second moments of signal and gradient at every site of a network: predicted, tolerated, measured.

    Attributes:
        name: The network.
        sites: In the order in which they ran.
        uncovered: Operations without a rule, and how often each passed a measured value through.
        operations: How many operations there were on the signal.
        notes: What a reader must know besides.
        attention: The softmaxes over products of queries and keys, in order.
    """

    name: str
    sites: tuple[Site, ...] = ()
    uncovered: Mapping[str, int] = field(default_factory=Counter)
    operations: int = 0
    notes: tuple[str, ...] = ()
    attention: tuple[Attention, ...] = ()

    @property
    def coverage(self) -> float:
        """Share of the sites that rules alone lead to."""
        return sum(s.covered for s in self.sites) / len(self.sites) if self.sites else 1.0

    @property
    def odd(self) -> tuple[Site, ...]:
        """The sites where prediction or measurement is out of place."""
        return tuple(s for s in self.sites if s.odd)

    def __iter__(self) -> Iterator[Site]:
        return iter(self.sites)

    def __len__(self) -> int:
        return len(self.sites)

    def __getitem__(self, name: str) -> Site:
        for site in self.sites:
            if site.name == name:
                return site
        raise KeyError(name)

    def __str__(self) -> str:
        from trimtab.report.prediction_text import render_prediction

        return render_prediction(self)

    def to_dict(self) -> dict[str, Any]:
        """Return the prediction as plain data."""
        sites = [asdict(s) | {"forward_error": s.forward_error, "backward_error": s.backward_error} for s in self.sites]
        return {
            "name": self.name,
            "coverage": self.coverage,
            "operations": self.operations,
            "uncovered": dict(self.uncovered),
            "notes": list(self.notes),
            "sites": sites,
            "attention": [asdict(a) for a in self.attention],
        }

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> "Prediction":
        """The prediction that `to_dict` made data of, as a record keeps it.

        Args:
            data: What `to_dict` gave.

        Returns:
            The prediction.
        """
        known = {f.name for f in fields(Site)}
        sites = tuple(Site(**{key: value for key, value in row.items() if key in known}) for row in data["sites"])
        attention = tuple(Attention(**(row | {"sources": tuple(row["sources"])})) for row in data["attention"])
        return cls(data["name"], sites, Counter(data["uncovered"]), data["operations"], tuple(data["notes"]), attention)

    def to_json(self) -> str:
        """Return the prediction as strict JSON (numbers that JSON has no word for are written as strings)."""
        import json

        from trimtab.report.json import SCHEMA, strict

        return json.dumps({"schema": SCHEMA, **strict(self.to_dict())}, indent=2, ensure_ascii=False, allow_nan=False)

    def profile(self, title: str = "", kinds: Sequence[str] = ()) -> "Profile":
        """Signal and gradient by depth, as `report.figures.signal_figure` draws them.

        Args:
            title: What the network is; its name by default.
            kinds: Classes of modules to show; all of them by default.

        Returns:
            The profile.
        """
        from trimtab.report.figures import Profile

        sites = [s for s in self.sites if not kinds or s.kind in kinds]
        up = [s.forward_tolerance for s in sites]
        back = [s.backward_tolerance for s in sites]
        return Profile(
            title=title or self.name,
            layers=tuple(s.name for s in sites),
            signal_measured=[s.forward_measured for s in sites],
            signal_predicted=[s.forward for s in sites],
            gradient_measured=[s.backward_measured for s in sites],
            gradient_predicted=[s.backward for s in sites],
            signal_low=[1 / f for f in up],
            signal_high=up,
            gradient_low=[1 / f for f in back],
            gradient_high=back,
        )

    def figure(self, path: str | Path | None = None) -> Any:
        """Draw signal and gradient by depth, the predicted band and the measured points.

        Args:
            path: Where to save it, as PNG unless it ends in .svg or .pdf; None saves nothing.

        Returns:
            The figure of matplotlib.
        """
        from trimtab.report.figures import signal_figure

        return signal_figure([self.profile()], path)


def log_ratio(measured: float, predicted: float) -> float:
    """log10 of measured over predicted; 0 where both are zero, nan where there is no ratio."""
    if measured == predicted == 0.0:
        return 0.0
    if not (math.isfinite(measured) and math.isfinite(predicted) and measured > 0.0 and predicted > 0.0):
        return math.nan
    return math.log10(measured / predicted)
