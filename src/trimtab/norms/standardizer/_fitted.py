"""What a fitted `Standardizer` knows: numbers derived from its column sums, and how sums of several become one."""

import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.validation import check_is_fitted

from trimtab._messages import say
from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import precision
from trimtab.norms.standardizer.columns import ColumnSums, Floats, merge_all
from trimtab.norms.standardizer.errors import LostVarianceWarning


class Fitted:
    """The attributes of a fitted standardizer. They are derived when asked for, so that a batch costs its sums and no more."""

    with_mean: bool
    with_std: bool
    _columns: ColumnSums | None = None
    _told: NDArray[np.bool_] | None = None

    def __sklearn_is_fitted__(self) -> bool:
        return self._columns is not None

    @property
    def _seen(self) -> ColumnSums:
        check_is_fitted(self)
        assert self._columns is not None
        return self._columns

    @property
    def mean_(self) -> Floats:
        """Mean of each feature."""
        return self._seen.mean

    @property
    def var_(self) -> Floats:
        """Population variance of each feature."""
        return self._seen.variance

    @property
    def constant_(self) -> NDArray[np.bool_]:
        """Features that vary no more than rounding does."""
        return precision.constant(self._seen)

    @property
    def scale_(self) -> Floats | None:
        """What each feature is divided by."""
        columns = self._seen
        return np.where(precision.constant(columns), 1.0, np.sqrt(columns.variance)) if self.with_std else None

    @property
    def counts_(self) -> NDArray[np.int64]:
        """Number of values seen of each feature."""
        return self._seen.count.astype(np.int64)

    @property
    def n_samples_seen_(self) -> Any:
        """Samples seen, or weights: one number where all features agree."""
        columns = self._seen
        seen = columns.count.astype(np.int64) if np.array_equal(columns.count, columns.weight) else columns.weight
        return seen[0] if (seen == seen[0]).all() else seen

    def _affine(self) -> tuple[Floats, Floats]:
        """Mean and scale, 0 and 1 where they are not used.

        Returns:
            Two arrays of shape (d,).
        """
        columns, scale = self._seen, self.scale_
        mean = columns.mean if self.with_mean else np.zeros(columns.size)
        return mean, np.ones(columns.size) if scale is None else scale

    @contextmanager
    def _unchanged_on_failure(self) -> Iterator[None]:
        """Put back every attribute if something is raised: none of their values is ever written into.

        Yields:
            Nothing.
        """
        before = dict(self.__dict__)
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _warn(self) -> None:
        """Warn, once a feature, of variance that storage has lost, or may have lost."""
        columns = self._seen
        told = np.zeros(columns.size, np.bool_) if self._told is None else self._told
        lost, hidden = precision.lost(columns) & ~told, precision.hidden(columns) & ~told
        self._told = told | lost | hidden
        if lost.any():
            first = int(np.flatnonzero(lost)[0])
            message = say(
                "{count} feature(s), first number {first}: neighbouring stored numbers lie {gap:.3g} apart around the mean "
                "{mean:.6g}, but the standard deviation is only {std:.3g}. Rounding changed the variance before it was measured "
                "here. Where the data is made, subtract an offset or keep float64; if the feature is constant, drop it.",
                count=int(lost.sum()),
                first=first,
                gap=precision.spacing(columns)[first],
                mean=columns.mean[first],
                std=np.sqrt(columns.variance[first]),
            )
            warnings.warn(message, LostVarianceWarning, stacklevel=3)
        if hidden.any():
            first = int(np.flatnonzero(hidden)[0])
            message = say(
                "{count} feature(s), first number {first}: every value is stored as {mean:.9g}, and neighbouring stored numbers "
                "lie {gap:.3g} apart there. If the feature was not constant before it was stored, its variance is lost: where "
                "the data is made, subtract an offset or keep float64. If it was, drop it.",
                count=int(hidden.sum()),
                first=first,
                mean=columns.mean[first],
                gap=precision.spacing(columns)[first],
            )
            warnings.warn(message, LostVarianceWarning, stacklevel=3)


STATE = ("_columns", "n_features_in_", "feature_names_in_")
"""What travels between processes."""


def state_of(standardizer: Any) -> dict[str, Any]:
    """What a standardizer has seen.

    Args:
        standardizer: Fitted or not.

    Returns:
        Its attributes of `STATE`, as far as it has them.
    """
    return {name: standardizer.__dict__[name] for name in STATE if name in standardizer.__dict__}


def union(states: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """What several have seen together; one that has seen nothing adds nothing.

    Args:
        states: Of `state_of`.

    Returns:
        Their union; empty if none has seen anything.

    Raises:
        NormalizationError: If they are over other features.
    """
    fitted = [state for state in states if state.get("_columns") is not None]
    if not fitted:
        return {}
    sizes = sorted({state["_columns"].size for state in fitted})
    if len(sizes) > 1:
        raise NormalizationError(
            f"standardizers over {sizes} features cannot be merged; the same features are expected"
        )
    names = list(dict.fromkeys(tuple(state["feature_names_in_"]) for state in fitted if "feature_names_in_" in state))
    if len(names) > 1:
        raise NormalizationError(
            f"standardizers over features of other names cannot be merged: {list(names[0])} and {list(names[1])}; "
            "rename or reorder the features"
        )
    result: dict[str, Any] = {
        "_columns": merge_all((state["_columns"] for state in fitted), sizes[0]),
        "n_features_in_": sizes[0],
    }
    if names:
        result["feature_names_in_"] = np.array(names[0], dtype=object)
    return result
