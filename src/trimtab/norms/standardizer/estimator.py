"""The estimator: streaming, mergeable standardization with scikit-learn's interface."""

from typing import Any, Self

import numpy as np
from scipy import sparse
from sklearn.base import BaseEstimator, OneToOneFeatureMixin, TransformerMixin
from sklearn.utils.validation import check_array, check_is_fitted, validate_data
from torch import Tensor

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import require_flag
from trimtab.norms.standardizer._dense import dense_sums
from trimtab.norms.standardizer._fitted import state_of, union
from trimtab.norms.standardizer._foldable import Foldable
from trimtab.norms.standardizer._inputs import batches, check_weight, grain_of, is_plain, is_stream, refuse_zeros
from trimtab.norms.standardizer._scaling import feature_axis, refuse_infinite, scale_array, scale_tensor, scaling
from trimtab.norms.standardizer._sparse import scale_columns, sparse_sums
from trimtab.norms.standardizer._tensors import tensor_sums
from trimtab.norms.standardizer.columns import ColumnSums, merge
from trimtab.norms.standardizer.ranks import gather

_KINDS = (np.float64, np.float32)


class Standardizer(OneToOneFeatureMixin, TransformerMixin, Foldable, BaseEstimator):  # type: ignore[misc]
    """Standardize features to mean 0 and standard deviation 1: z = (x - mean) / std.

    A drop-in for `sklearn.preprocessing.StandardScaler` that also takes tensors and streams of batches, can be merged, and can be
    folded into a network. Deviations from a shift near the data are added up over a few rows in the data's own dtype and in float64
    from there on, and parts are merged by Chan, Golub and LeVeque (1979), so that neither a large mean nor the number of parts costs
    digits: variances of float32 data are right to some 1e-9, of float64 data to some 1e-15. NaN is skipped in fitting and kept in
    transforming.

    Accepted by `fit`, `partial_fit`: arrays and data frames (n, d); SciPy sparse matrices, with `with_mean=False`; tensors on any
    device, of shape (n, d), (n,) for one feature, or with more axes and the features on `feature_dim`; a `DataLoader` or an iterator
    of batches, each an array, a tensor, or a tuple, list or dictionary whose element `part` is one.

    Targets: use one standardizer for the inputs and another for the targets, either `Standardizer(part=1)` on a loader of (x, y),
    or `sklearn.compose.TransformedTargetRegressor(transformer=Standardizer())`, which undoes the standardization in `predict`.

    Args:
        with_mean: Subtract the mean.
        with_std: Divide by the standard deviation; a constant feature is divided by 1.
        copy: False to standardize in place where that is possible.
        feature_dim: Axis of the features in tensors of more than two axes; 1, as in (N, C, H, W), by default.
        part: Which element of a batch holds what is standardized, where batches are tuples, lists or dictionaries.

    Attributes:
        mean_: Mean of each feature, float64 of shape (d,).
        var_: Population variance of each feature, of the numbers as they were stored.
        scale_: What is divided by, shape (d,): the root of `var_`, 1 where `constant_`; None without `with_std`.
        constant_: Features whose variance is not above what rounding one number makes (`precision.constant`), shape (d,).
        counts_: Values seen of each feature: not NaN, and with a weight above zero; int64 of shape (d,).
        n_samples_seen_: The same as scikit-learn has it: one number where all features agree, and sums of weights if there are any.
        n_features_in_: Number of features.
        feature_names_in_: Names of the features, where the data had names.
    """

    def __init__(
        self,
        *,
        with_mean: bool = True,
        with_std: bool = True,
        copy: bool = True,
        feature_dim: int = 1,
        part: int | str = 0,
    ) -> None:
        self.with_mean = with_mean
        self.with_std = with_std
        self.copy = copy
        self.feature_dim = feature_dim
        self.part = part

    # ------------------------------------------------------------------------------------------------ fitting

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Forget what was seen, and see this. A call that raises changes nothing.

        Args:
            X: Data of any accepted kind.
            y: Ignored.
            sample_weight: One weight a sample, zero or above; None weighs all alike.

        Returns:
            Itself.

        Raises:
            NormalizationError: As in `partial_fit`, and if all weights are zero.
        """
        with self._unchanged_on_failure():
            refuse_zeros(sample_weight)
            for name in ("_columns", "_told"):
                self.__dict__.pop(name, None)
            self._see(X, sample_weight)
            self._warn()
        return self

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """See more data. A call that raises changes nothing.

        A tensor on another device is reduced there, and the moments are fetched once a call.

        Args:
            X: Data of any accepted kind.
            y: Ignored.
            sample_weight: One weight a sample, zero or above; None weighs all alike.

        Returns:
            Itself.

        Raises:
            NormalizationError: If the data is infinite, empty, or of another number of features, or weights do not fit.
        """
        with self._unchanged_on_failure():
            self._see(X, sample_weight)
            self._warn()
        return self

    def _see(self, X: Any, sample_weight: Any) -> None:
        """Add data of any kind.

        Raises:
            NormalizationError: If a stream is given weights.
        """
        self._check_parameters()
        known = self._columns
        if is_stream(X):
            if sample_weight is not None:
                raise NormalizationError("a stream has no samples to give weights to; call partial_fit batch by batch")
            for batch in batches(X, self.part):
                known = self._and(known, batch, None)
        else:
            known = self._and(known, X, sample_weight)
        self._columns = known

    def _and(self, known: ColumnSums | None, X: Any, sample_weight: Any) -> ColumnSums:
        """What was known, and one batch.

        Returns:
            Sums over both.

        Raises:
            NormalizationError: If a tensor has another number of features.
        """
        if isinstance(X, Tensor):
            samples = X.shape[0] if X.dim() else 1
            sums = tensor_sums(X, self.feature_dim, check_weight(sample_weight, samples))
            if known is not None and sums.size != known.size:
                raise NormalizationError(
                    f"X has {sums.size} features, but Standardizer is expecting {known.size} features as input; "
                    f"the shape of the tensor is {tuple(X.shape)}"
                )
            self.n_features_in_ = sums.size
        else:
            sums = self._array_sums(X, sample_weight, known)
        return sums if known is None else merge(known, sums)

    def _array_sums(self, X: Any, sample_weight: Any, known: ColumnSums | None) -> ColumnSums:
        grain = grain_of(X)
        # scikit-learn's checks take as long as summing up 50,000 numbers; one more array just as expected can do without.
        if known is None or hasattr(self, "feature_names_in_") or not is_plain(X, known.size):
            X = validate_data(
                self,
                X,
                reset=known is None,
                accept_sparse=("csr", "csc"),
                dtype=_KINDS,
                ensure_all_finite="allow-nan" if sparse.issparse(X) else False,  # dense sums see infinity by themselves
            )
        weight = check_weight(sample_weight, X.shape[0])
        if sparse.issparse(X):
            self._refuse_centering()
            return sparse_sums(X, weight, grain)
        return dense_sums(X, weight, grain)

    def _check_parameters(self) -> None:
        for name in ("with_mean", "with_std", "copy"):
            value = getattr(self, name)
            if not isinstance(value, bool | np.bool_):
                raise NormalizationError(f"{name} is {value!r}; True or False is expected")
        if isinstance(self.feature_dim, bool) or not isinstance(self.feature_dim, int | np.integer):
            raise NormalizationError(f"feature_dim is {self.feature_dim!r}; the number of an axis is expected")

    def _refuse_centering(self) -> None:
        if self.with_mean:
            raise NormalizationError(
                "Cannot center sparse matrices: subtracting a mean would fill in every zero. Use Standardizer(with_mean=False)"
            )

    # ------------------------------------------------------------------------------------------------ transforming

    def transform(self, X: Any, copy: bool | None = None) -> Any:
        """Standardize.

        Args:
            X: An array, data frame, sparse matrix (`with_mean=False`) or tensor with the features seen in fitting.
            copy: Overrides the parameter of that name.

        Returns:
            The same kind; float32 and float64 are kept, tensors keep their dtype and device and pass gradients on.

        Raises:
            NotFittedError: If nothing was seen yet.
            NormalizationError: If the features are others than in fitting, or a value is infinite.
        """
        return self._scale(X, copy, inverse=False)

    def inverse_transform(self, X: Any, copy: bool | None = None) -> Any:
        """Undo the standardization.

        Args:
            X: Standardized data of any kind that `transform` gives back.
            copy: Overrides the parameter of that name.

        Returns:
            The same kind, in the original units.

        Raises:
            NotFittedError: If nothing was seen yet.
            NormalizationError: If the features are others than in fitting, or a value is infinite.
        """
        return self._scale(X, copy, inverse=True)

    def _scale(self, X: Any, copy: bool | None, inverse: bool) -> Any:
        columns = self._seen
        if copy is not None:
            require_flag(copy=copy)
        copy = self.copy if copy is None else bool(copy)
        if isinstance(X, Tensor):
            refuse_infinite(X)
            axis = feature_axis(X, self.feature_dim, columns.size)
            wide = not X.dtype.is_floating_point or X.element_size() == 8
            kind = np.dtype(np.float64 if wide and X.device.type != "mps" else np.float32)
            return scale_tensor(X, axis, scaling(columns, self.scale_, self.with_mean, kind), inverse, copy)
        if is_stream(X):
            raise NormalizationError("a stream of batches was given; transform each batch as it comes")
        options: dict[str, Any] = {
            "accept_sparse": ("csr", "csc"),
            "copy": copy,
            "dtype": _KINDS,
            "force_writeable": True,
            "ensure_all_finite": "allow-nan",
        }
        X = check_array(X, estimator=self, **options) if inverse else validate_data(self, X, reset=False, **options)
        if X.shape[1] != columns.size:
            raise NormalizationError(
                f"X has {X.shape[1]} features, but Standardizer is expecting {columns.size} features as input"
            )
        if not sparse.issparse(X):
            return scale_array(X, scaling(columns, self.scale_, self.with_mean, np.dtype(X.dtype)), inverse)
        self._refuse_centering()
        scale = self.scale_
        return X if scale is None else scale_columns(X, scale if inverse else 1.0 / scale)

    # ------------------------------------------------------------------------------------------------ merging

    def merge(self, *others: "Standardizer") -> "Standardizer":
        """What one standardizer would have seen that had seen all the data of all of these.

        Pure: none of them is changed. One that has seen nothing adds nothing. So parts of the data can be fitted anywhere, by
        threads, processes or the tasks of a Dask graph, and merged in any order or as a tree; order changes the last bits only.

        Args:
            *others: Standardizers over the same features.

        Returns:
            A new one, with the parameters of this one.

        Raises:
            NormalizationError: If the features are others, or a partner is no Standardizer.
            NotFittedError: If none of them has seen anything.
        """
        for other in others:
            if not isinstance(other, Standardizer):
                raise NormalizationError(f"merge was given a {type(other).__name__}; another Standardizer is expected")
        result = self._with(union(map(state_of, (self, *others))))
        result._warn()
        return result

    def merge_ranks(self, group: Any = None) -> "Standardizer":
        """Merge over the ranks of a process group; every rank must call it, and gets the same, bit for bit.

        Pure, as `merge`: this rank's own moments stay what they are, so that calling it twice counts nothing twice.

        Args:
            group: A `torch.distributed` group; None for the default one.

        Returns:
            A new one, with the parameters of this one.

        Raises:
            NormalizationError: If there is no process group, or ranks saw other features.
            NotFittedError: If no rank has seen anything.
        """
        result = self._with(union(gather(state_of(self), group)))
        result._warn()
        return result

    def _with(self, state: dict[str, Any]) -> "Standardizer":
        """A new one with these parameters that has seen what a state says.

        Returns:
            It, fitted.
        """
        result = type(self)(**self.get_params(deep=False))
        result.__dict__.update(state)
        check_is_fitted(result)
        return result

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.sparse = not self.with_mean
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags
