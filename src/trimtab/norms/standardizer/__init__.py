"""The first note's normalization: standardize features, fold that into a network, and see what it does to gradient descent.

Names load when they are first used: the estimator needs scikit-learn, the rest does not.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.norms.standardizer.errors import CancellationWarning as CancellationWarning
    from trimtab.norms.standardizer.errors import FoldError as FoldError
    from trimtab.norms.standardizer.errors import LostVarianceWarning as LostVarianceWarning
    from trimtab.norms.standardizer.estimator import Standardizer as Standardizer
    from trimtab.norms.standardizer.folding import FoldReport as FoldReport
    from trimtab.norms.standardizer.padded import ShiftedConvTranspose as ShiftedConvTranspose
    from trimtab.norms.standardizer.padded import ValuePaddedConv as ValuePaddedConv
    from trimtab.norms.standardizer.regression import Conditioning as Conditioning
    from trimtab.norms.standardizer.regression import conditioning as conditioning
    from trimtab.norms.standardizer.spectrum import Spectrum as Spectrum

_HOMES = {
    "CancellationWarning": "errors",
    "Conditioning": "regression",
    "FoldError": "errors",
    "FoldReport": "folding",
    "LostVarianceWarning": "errors",
    "ShiftedConvTranspose": "padded",
    "Spectrum": "spectrum",
    "Standardizer": "estimator",
    "ValuePaddedConv": "padded",
    "conditioning": "regression",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
