"""What a `Standardizer` takes besides arrays: tensors of any layout, loaders and other streams, sparse matrices."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.preprocessing import StandardScaler
from torch.utils.data import DataLoader, TensorDataset

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import Standardizer

X = (
    torch.randn(200, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 5.0, 0.1])
    + 3
)


def same(a, b):
    np.testing.assert_allclose(a.mean_, b.mean_, rtol=1e-12)
    np.testing.assert_allclose(a.var_, b.var_, rtol=1e-10)
    np.testing.assert_array_equal(a.counts_, b.counts_)


# ---------------------------------------------------------------------------------------------------- tensors


@pytest.mark.parametrize("space", [(5,), (4, 5), (2, 3, 2)])
def test_images_have_their_channels_on_axis_one(space):
    x = torch.randn(6, 3, *space, dtype=torch.float64) * 4 + 1
    rows = x.movedim(1, -1).reshape(-1, 3)
    weight = np.arange(6.0)
    same(Standardizer().fit(x), Standardizer().fit(rows.numpy()))
    weighted = Standardizer().fit(x, sample_weight=weight)
    same(weighted, Standardizer().fit(rows.numpy(), sample_weight=np.repeat(weight, np.prod(space))))
    z = Standardizer().fit(x).transform(x)
    assert z.shape == x.shape
    axes = (0, *range(2, x.dim()))
    expected = (x - x.mean(axes, keepdim=True)) / x.std(axes, correction=0, keepdim=True)
    torch.testing.assert_close(z, expected, rtol=0, atol=1e-12)
    torch.testing.assert_close(Standardizer().fit(x).inverse_transform(z), x, rtol=0, atol=1e-12)


def test_sequences_have_their_features_last_when_told():
    x = torch.randn(6, 5, 3, dtype=torch.float64)
    same(Standardizer(feature_dim=-1).fit(x), Standardizer().fit(x.reshape(-1, 3).numpy()))
    same(Standardizer(feature_dim=2).fit(x), Standardizer().fit(x.reshape(-1, 3).numpy()))
    expected = (x - x.mean((0, 1))) / x.std((0, 1), correction=0)
    torch.testing.assert_close(Standardizer(feature_dim=-1).fit(x).transform(x), expected, rtol=0, atol=1e-12)


def test_targets_of_one_axis_are_one_feature():
    y = X[:, 1]
    fitted = Standardizer().fit(y)
    assert fitted.n_features_in_ == 1
    z = fitted.transform(y)
    assert z.shape == y.shape
    torch.testing.assert_close(z, (y - y.mean()) / y.std(correction=0))
    torch.testing.assert_close(fitted.inverse_transform(z), y)


@pytest.mark.parametrize(
    "kind", [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
)
def test_tensors_keep_their_dtype_and_count_in_a_wider_one(kind):
    x = (X.abs() * 10).to(kind) if kind != torch.bool else X > 3
    wide = x.double()
    fitted = Standardizer().fit(x)
    np.testing.assert_allclose(fitted.var_, wide.var(0, correction=0).numpy(), rtol=1e-6)
    z = fitted.transform(x)
    assert z.dtype == (kind if kind.is_floating_point else torch.get_default_dtype())
    expected = (wide - wide.mean(0)) / wide.std(0, correction=0)
    tolerance = max(2 * torch.finfo(z.dtype).eps, 1e-14)
    torch.testing.assert_close(z.double(), expected, rtol=tolerance, atol=tolerance)


def test_strides_gradients_and_read_only_memory_do_not_matter():
    same(Standardizer().fit(X.T.contiguous().T), Standardizer().fit(X))
    same(Standardizer().fit(X.clone().requires_grad_()), Standardizer().fit(X))
    same(Standardizer().fit(X[::2]), Standardizer().fit(X[::2].contiguous()))
    locked = X.numpy().copy()
    locked.flags.writeable = False
    same(Standardizer().fit(locked), Standardizer().fit(X))
    same(Standardizer().partial_fit(locked[:100]).partial_fit(locked[100:]), Standardizer().fit(X))
    same(Standardizer().fit(X.numpy()[:, ::-1][::-1]), Standardizer().fit(X.numpy()[:, ::-1].copy()))


def test_gradients_pass_through_transform_and_back():
    fitted = Standardizer().fit(X)
    x = X[:4].clone().requires_grad_()
    assert torch.autograd.gradcheck(fitted.transform, (x,))
    assert torch.autograd.gradcheck(fitted.inverse_transform, (x,))
    (slope,) = torch.autograd.grad(fitted.transform(x).sum(), x)
    np.testing.assert_allclose(slope.numpy(), np.broadcast_to(1 / fitted.scale_, slope.shape), rtol=1e-14)


@pytest.mark.parametrize(
    "options", [{}, {"with_mean": False}, {"with_std": False}, {"with_mean": False, "with_std": False}]
)
def test_tensors_and_arrays_get_the_same_numbers(options):
    fitted = Standardizer(**options).fit(X)
    for kind in (np.float32, np.float64):
        x = X.numpy().astype(kind)
        np.testing.assert_array_equal(fitted.transform(torch.from_numpy(x)).numpy(), fitted.transform(x))
        np.testing.assert_array_equal(
            fitted.inverse_transform(torch.from_numpy(x)).numpy(), fitted.inverse_transform(x)
        )


def test_tensors_change_in_place_only_when_asked():
    x = X.clone()
    fitted = Standardizer().fit(x)
    z = fitted.transform(x)
    assert torch.equal(x, X)
    assert Standardizer(with_mean=False, with_std=False).fit(x).transform(x) is not x
    assert fitted.transform(x, copy=False) is x
    torch.testing.assert_close(x, z, rtol=0, atol=0)
    leaf = X.clone().requires_grad_()
    assert fitted.transform(leaf, copy=False) is not leaf  # autograd forbids it


# ---------------------------------------------------------------------------------------------------- streams


def test_loaders_of_inputs_and_of_pairs():
    y = X[:, 0] * 2 + 1
    same(Standardizer().fit(DataLoader(X, batch_size=33)), Standardizer().fit(X))
    pairs = DataLoader(TensorDataset(X, y), batch_size=33, shuffle=True)
    same(Standardizer().fit(pairs), Standardizer().fit(X))
    same(Standardizer(part=1).fit(pairs), Standardizer().fit(y))
    named = DataLoader([{"x": a, "y": b} for a, b in zip(X, y, strict=True)], batch_size=33)
    same(Standardizer(part="x").fit(named), Standardizer().fit(X))


def test_any_iterator_and_a_mixture_of_kinds():
    same(Standardizer().fit(iter(np.split(X.numpy(), 10))), Standardizer().fit(X))
    mixed = Standardizer().partial_fit(X[:50]).partial_fit(X.numpy()[50:100]).partial_fit(iter([(X[100:], None)]))
    same(mixed, Standardizer().fit(X))


def test_a_stream_that_breaks_off_counts_for_nothing():
    def breaking():
        yield X
        raise OSError("disk")

    fitted = Standardizer().fit(X)
    with pytest.raises(OSError, match="disk"):
        fitted.partial_fit(breaking())
    with pytest.raises(NormalizationError):
        fitted.partial_fit(iter([X, X * torch.inf]))
    assert fitted.n_samples_seen_ == 200


# ---------------------------------------------------------------------------------------------------- sparse


def matrix(rng, gaps=False):
    x = sparse.random_array(
        (400, 6), density=0.2, rng=rng, data_sampler=lambda size: rng.standard_normal(size) + 2
    ).tocsr()
    x.data[::7] = 0.0  # stored zeros
    if gaps:
        x.data[::5] = np.nan
    return x


@pytest.mark.parametrize("layout", ["csr", "csc", "coo"])
@pytest.mark.parametrize("gaps", [False, True])
@pytest.mark.parametrize("kind", ["float64", "float32"])
def test_sparse_is_dense(layout, gaps, kind):
    rng = np.random.default_rng(0)
    x = matrix(rng, gaps).astype(kind)
    dense, weight = x.toarray(), rng.integers(0, 3, 400).astype(float)
    x = x.asformat(layout)
    for weights in (None, weight):
        ours = Standardizer(with_mean=False).fit(x, sample_weight=weights)
        reference = Standardizer(with_mean=False).fit(dense, sample_weight=weights)
        np.testing.assert_allclose(ours.mean_, reference.mean_, rtol=1e-6)
        np.testing.assert_allclose(ours.var_, reference.var_, rtol=1e-6)
        np.testing.assert_array_equal(ours.counts_, reference.counts_)
        theirs = StandardScaler(with_mean=False).fit(x, sample_weight=weights)
        np.testing.assert_allclose(ours.scale_, theirs.scale_, rtol=1e-6)
        streamed = Standardizer(with_mean=False)
        for part, share in ((slice(0, 150), slice(0, 150)), (slice(150, 400), slice(150, 400))):
            streamed.partial_fit(x.tocsr()[part], sample_weight=None if weights is None else weights[share])
        np.testing.assert_allclose(streamed.var_, reference.var_, rtol=1e-6)
    z = ours.transform(x)
    assert sparse.issparse(z)
    assert z.dtype == np.dtype(kind)
    np.testing.assert_allclose(z.toarray(), reference.transform(dense), rtol=1e-6)
    np.testing.assert_allclose(ours.inverse_transform(z).toarray(), dense, rtol=1e-6)


def test_duplicate_entries_are_added_first():
    x = sparse.coo_array(([1.0, 2.0, 5.0], ([0, 0, 2], [1, 1, 0])), shape=(3, 2))
    rough = sparse.csr_array((x.data, x.coords[1], np.array([0, 2, 2, 3])), shape=(3, 2))
    assert not rough.has_canonical_format
    same(Standardizer(with_mean=False).fit(rough), Standardizer(with_mean=False).fit(x.toarray()))
    assert rough.nnz == 3  # the caller's own matrix is left as it is


def test_a_large_mean_in_a_sparse_column_keeps_its_variance():
    rng = np.random.default_rng(0)
    full = 1e8 + rng.standard_normal((500, 1))
    fitted = Standardizer(with_mean=False).fit(sparse.csc_array(full))
    assert fitted.var_[0] == pytest.approx(float(full.astype(np.longdouble).var()), rel=1e-9)


def test_sparse_cannot_be_centred():
    x = matrix(np.random.default_rng(0))
    with pytest.raises(NormalizationError, match="Cannot center sparse matrices"):
        Standardizer().fit(x)
    fitted = Standardizer().fit(x.toarray())
    with pytest.raises(NormalizationError, match="with_mean=False"):
        fitted.transform(x)
