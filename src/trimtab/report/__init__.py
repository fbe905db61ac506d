"""What a diagnosis is made of, and its renderings."""

from trimtab.report.comparison import Comparison
from trimtab.report.diagnosis import Diagnosis, RunFacts
from trimtab.report.finding import SEVERITIES, Evidence, Finding, Location, Repair, Severity
from trimtab.report.formats import FORMATS, render
from trimtab.report.pages import Page, UnknownCode, codes, page
from trimtab.report.prediction import Prediction, Site
from trimtab.report.prescription import Prescription, Trial

__all__ = [
    "FORMATS",
    "SEVERITIES",
    "Comparison",
    "Diagnosis",
    "Evidence",
    "Finding",
    "Location",
    "Page",
    "Prediction",
    "Prescription",
    "Repair",
    "RunFacts",
    "Severity",
    "Site",
    "Trial",
    "UnknownCode",
    "codes",
    "page",
    "render",
]
