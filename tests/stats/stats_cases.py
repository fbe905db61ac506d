"""The truth by numpy, and what counts as equal to it."""

import numpy as np

from trimtab.stats import FIELDS


def truth(values):
    """Moments by numpy in float64, two passes."""
    x = np.asarray(values, np.float64).reshape(-1)
    bad = ~np.isfinite(x)
    x = x[~bad]
    if not x.size:
        return np.array([0, 0, 0, 0, 0, 0, bad.sum()], np.float64)
    # numpy's longdouble carries the truth where float64's own rounding would show.
    y = x.astype(np.longdouble)
    mean = y.mean()
    row = [x.size, mean, ((y - mean) ** 2).sum(), np.abs(y).mean(), np.abs(x).max(), (x == 0).sum(), bad.sum()]
    return np.array(row, np.float64)


def assert_rows_close(row, expected, rtol=1e-5):
    """Counts are equal; the mean is right to rtol of the magnitude, the rest relatively."""
    row, expected = np.asarray(row), np.asarray(expected)
    assert row.shape == expected.shape == (len(FIELDS),)
    for name in ("count", "zeros", "nonfinite", "abs_max"):
        i = FIELDS.index(name)
        assert row[i] == expected[i], name
    np.testing.assert_allclose(row[1], expected[1], rtol=0, atol=1e-6 * expected[3], err_msg="mean")
    np.testing.assert_allclose(row[3], expected[3], rtol=rtol, err_msg="abs_mean")
    # Of a constant the variance is rounding alone: (mean eps)² per value.
    np.testing.assert_allclose(
        row[2], expected[2], rtol=rtol, atol=expected[0] * (expected[1] * 1e-7) ** 2 * 1e-2, err_msg="m2"
    )
