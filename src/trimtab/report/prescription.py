"""What to take against a fault: the repairs that were tried, each beside doing nothing and beside a random change."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Protocol

import trimtab
from trimtab.errors import RepairError
from trimtab.report.diagnosis import Diagnosis
from trimtab.report.finding import Repair
from trimtab.report.json import strict

SCHEMA = 1


class Change(Protocol):
    """What can be done to a fresh setup."""

    def apply(self, setup: Any) -> Any:
        """Change it in place and give it back."""
        ...


@dataclass(frozen=True, slots=True)
class Trial:
    """A repair that was tried.

    Attributes:
        repair: What was changed, in words and code.
        families: Which families its changes are of.
        score: Mean score over the seeds, higher is better; None where every run of it broke.
        baseline: Mean score of doing nothing on the same seeds.
        random: Mean score of random changes of the same families; None where it did not come to that.
        interval: Where the mean gain over doing nothing lies; None where it was tried on one seed only.
        interval_random: The same over a random change.
        level: Confidence of both intervals: 0.995 at three and at five seeds and 0.96 at eight, which together make 0.95.
        seeds: Seeds it was tried on.
        proved: Whether both intervals lie above zero.
        share: Of a run's steps, how many it was trained for; below 1 others were ahead of it by then.
        why: Why runs of it broke, "" if none did.
        changes: The changes themselves.
    """

    repair: Repair
    families: tuple[str, ...]
    score: float | None
    baseline: float | None = None
    random: float | None = None
    interval: tuple[float, float] | None = None
    interval_random: tuple[float, float] | None = None
    level: float = 0.95
    seeds: int = 1
    proved: bool = False
    share: float = 1.0
    why: str = ""
    changes: tuple[Change, ...] = ()

    def apply(self, setup: Any) -> Any:
        """Make the changes to a setup that has not been trained.

        Args:
            setup: A `trimtab.Setup`; it is changed in place.

        Returns:
            The same setup.

        Raises:
            RepairError: One of the changes has been made to it before, or cannot be made to it.
        """
        made = vars(setup).setdefault("_changes_made", [])
        if any(change in made for change in self.changes):
            raise RepairError("this repair has been made to this setup already; apply it to a fresh one")
        made += self.changes
        for change in self.changes:
            change.apply(setup)
        return setup

    def to_dict(self) -> dict[str, Any]:
        """Plain data, for JSON."""
        names = [name for name in self.__slots__ if name not in ("repair", "changes")]
        return {"repair": asdict(self.repair), **{name: getattr(self, name) for name in names}}


@dataclass(frozen=True, slots=True)
class Prescription:
    """A diagnosis, what was tried against it, and what to take.

    Attributes:
        diagnosis: What is wrong.
        trials: What was tried, the best first.
        best: The repair to take: the best one that is proved; None where none is.
        measure: What the scores are: "evaluate", or "loss" for minus the area under the loss.
        run_steps: Training steps of one run.
        steps: Training steps taken in all, the diagnosis among them.
        finished: Whether it ended by itself; False where nothing is proved and the budget had no room for seeds that might have decided.
        notes: What else is to be known, a sentence each: what could not be tried and why.
        broke: Whether the run as it is ended in an error of its own, or in a score that is no number.
    """

    diagnosis: Diagnosis
    trials: tuple[Trial, ...] = ()
    best: Trial | None = None
    measure: str = "evaluate"
    run_steps: int = 0
    steps: int = 0
    finished: bool = True
    notes: tuple[str, ...] = ()
    broke: bool = False

    def to_json(self) -> str:
        """Strict JSON: an object with `schema`, `trimtab`, the fields of this class, and each trial as an object."""
        document = {
            "schema": SCHEMA,
            "trimtab": trimtab.__version__,
            "best": None if self.best is None else strict(self.best.to_dict()),
            "trials": [strict(trial.to_dict()) for trial in self.trials],
            "measure": self.measure,
            "run_steps": self.run_steps,
            "steps": self.steps,
            "finished": self.finished,
            "notes": list(self.notes),
            "broke": self.broke,
            "diagnosis": strict(self.diagnosis.to_dict()),
        }
        return json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False)

    def to_html(self, path: str | Path | None = None) -> str:
        """Return the prescription, its diagnosis and the charts of the run as one page of HTML that needs nothing else.

        Args:
            path: File to write it to; None writes none.

        Returns:
            The page.

        Raises:
            UsageError: The file cannot be written.
        """
        from trimtab.report.html import render_html, write_page

        page = render_html(self.diagnosis, prescription=self)
        if path is not None:
            write_page(page, path)
        return page

    def _repr_html_(self) -> str:
        from trimtab.report.html import notebook_html

        return notebook_html(self.diagnosis, prescription=self)

    def __str__(self) -> str:
        from trimtab.report.prescription_text import render_prescription

        return render_prescription(self)
