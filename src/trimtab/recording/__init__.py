"""Watching a run: taps, pass ledger, step clock, and the record with its store. Knows no theory and gives no verdict."""

from trimtab.recording.facts import class_name
from trimtab.recording.glance import Glance, Signature, glance, is_settled, signature
from trimtab.recording.record import COLUMNS, Kind, Record, Series, Site, Units, is_record
from trimtab.recording.recorder import Recorder
from trimtab.recording.schedule import Schedule
from trimtab.recording.sites import call_name, split_call
from trimtab.recording.store import BUDGET, Store, bytes_of
from trimtab.recording.unseen import Unseen

__all__ = [
    "BUDGET",
    "COLUMNS",
    "Glance",
    "Kind",
    "Record",
    "Recorder",
    "Schedule",
    "Series",
    "Signature",
    "Site",
    "Store",
    "Units",
    "Unseen",
    "bytes_of",
    "call_name",
    "class_name",
    "glance",
    "is_record",
    "is_settled",
    "signature",
    "split_call",
]
