"""trimtab: learn why a network won't train.

The root cause, the layer, the measured number beside the expected one, and the repair. Public names are loaded when they are first
used, so that `import trimtab` stays light.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab import curvature as curvature
    from trimtab import integrations as integrations
    from trimtab import norms as norms
    from trimtab import propagation as propagation
    from trimtab._setup import Setup as Setup
    from trimtab.diagnosis.check import check as check
    from trimtab.diagnosis.compare import compare as compare
    from trimtab.diagnosis.diagnose import diagnose as diagnose
    from trimtab.errors import NormalizationError as NormalizationError
    from trimtab.errors import RecordError as RecordError
    from trimtab.errors import RepairError as RepairError
    from trimtab.errors import RunStopped as RunStopped
    from trimtab.errors import SetupError as SetupError
    from trimtab.errors import StepError as StepError
    from trimtab.errors import TrimtabError as TrimtabError
    from trimtab.errors import UsageError as UsageError
    from trimtab.norms import Standardizer as Standardizer
    from trimtab.prediction.predict import predict as predict
    from trimtab.recording import Record as Record
    from trimtab.repairs.repair import repair as repair
    from trimtab.report import Comparison as Comparison
    from trimtab.report import Diagnosis as Diagnosis
    from trimtab.report import Evidence as Evidence
    from trimtab.report import Finding as Finding
    from trimtab.report import Prediction as Prediction
    from trimtab.report import Prescription as Prescription
    from trimtab.report import Repair as Repair
    from trimtab.report import Trial as Trial
    from trimtab.runner.watch import Watch as Watch
    from trimtab.runner.watch import watch as watch

__version__ = "0.1.0"

_HOMES = {
    "Setup": "trimtab._setup",
    "check": "trimtab.diagnosis",
    "compare": "trimtab.diagnosis",
    "diagnose": "trimtab.diagnosis",
    "NormalizationError": "trimtab.errors",
    "RecordError": "trimtab.errors",
    "RepairError": "trimtab.errors",
    "RunStopped": "trimtab.errors",
    "SetupError": "trimtab.errors",
    "StepError": "trimtab.errors",
    "TrimtabError": "trimtab.errors",
    "UsageError": "trimtab.errors",
    "Standardizer": "trimtab.norms",
    "Record": "trimtab.recording",
    "Comparison": "trimtab.report",
    "Diagnosis": "trimtab.report",
    "Evidence": "trimtab.report",
    "Finding": "trimtab.report",
    "Prediction": "trimtab.report",
    "Prescription": "trimtab.report",
    "Repair": "trimtab.report",
    "Trial": "trimtab.report",
    "repair": "trimtab.repairs",
    "predict": "trimtab.prediction",
    "Watch": "trimtab.runner",
    "watch": "trimtab.runner",
}
"""Public names and the room each one lives in."""

_ROOMS = frozenset({"curvature", "integrations", "norms", "propagation"})
"""Public packages."""

__all__ = ["__version__", "curvature", "integrations", "norms", "propagation", *sorted(_HOMES)]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        value = getattr(import_module(_HOMES[name]), name)
    elif name in _ROOMS:
        value = import_module(f"trimtab.{name}")
    else:
        raise AttributeError(f"module 'trimtab' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
