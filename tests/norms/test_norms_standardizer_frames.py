"""Data frames: names of features, and the dtype that the numbers were stored in."""

import numpy as np
import pandas as pd
import pytest

from trimtab.errors import NormalizationError
from trimtab.norms.standardizer import LostVarianceWarning, Standardizer


def frame(names=("width", "height")):
    return pd.DataFrame(np.random.default_rng(0).standard_normal((50, 2)), columns=list(names))


def test_names_are_kept_checked_and_given_back():
    fitted = Standardizer().set_output(transform="pandas").fit(frame())
    assert list(fitted.feature_names_in_) == ["width", "height"]
    assert list(fitted.get_feature_names_out()) == ["width", "height"]
    z = fitted.transform(frame())
    assert list(z.columns) == ["width", "height"]
    np.testing.assert_allclose(z.std(ddof=0), 1)
    with pytest.raises(ValueError, match="feature names should match"):
        fitted.partial_fit(frame(("height", "width")))
    with pytest.warns(UserWarning, match="does not have valid feature names"):
        fitted.partial_fit(frame().to_numpy())
    assert list(fitted.merge(Standardizer().fit(frame())).feature_names_in_) == ["width", "height"]
    with pytest.raises(NormalizationError, match="features of other names"):
        fitted.merge(Standardizer().fit(frame(("height", "width"))))


def test_a_frame_of_float32_is_known_as_such():
    lost = (1e8 + 2 * frame()).astype(np.float32)
    with pytest.warns(LostVarianceWarning):
        Standardizer().fit(lost)
    Standardizer().fit(1e8 + 2 * frame())  # every warning is an error here
