"""How often is a root cause the true one? The measure behind a finding's confidence.

    python benchmarks/calibrate_roots.py run --out roots.jsonl [--cases DIR] [--seeds 0 1] [--only NAME ...]
    python benchmarks/calibrate_roots.py report --out roots.jsonl [MORE.jsonl ...]
    python benchmarks/calibrate_roots.py trials [--cases DIR]

`run` diagnoses every broken run of the bank in tests/diagnosis (or of a folder of case files with `FAULT`, `broken()` and `healthy()`)
as it is and in hostile variants that nobody tuned a rule on: other rates, another optimizer, a quarter of the steps. A variant may
break a run in a way of its own, so where the diagnosis names anything but the one known fault, the healthy twin is diagnosed under the
same variant: if it is not left in peace the run has more than one fault, and does not count. `report` compares what was said with what
was true, for each way in which a root stands (`trimtab.diagnosis.confidence`). `trials` tries each known fault against roots
that the run does not have. Needs scikit-learn, as the tests do.
"""

import argparse
import importlib.util
import json
import os
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import trimtab
from trimtab.diagnosis import probes
from trimtab.diagnosis.confidence import RIGHT, confidence, standing
from trimtab.diagnosis.probes.removal import MENDS, rivals, start_of
from trimtab.recording import Record

PROBLEMS = Path(__file__).resolve().parents[1] / "tests" / "diagnosis"
NOT_CASES = {"case", "score", "train"}

Make = Callable[[str, int], trimtab.Setup]


def rates(factor: float) -> Callable[[trimtab.Setup], trimtab.Setup]:
    """Every learning rate times a factor."""

    def change(setup: trimtab.Setup) -> trimtab.Setup:
        for optimizer in setup.optimizers:
            for group in optimizer.param_groups:
                for key in {"lr", "initial_lr"} & set(group):
                    group[key] = group[key] * factor
        if hasattr(setup.scheduler, "base_lrs"):
            setup.scheduler.base_lrs = [rate * factor for rate in setup.scheduler.base_lrs]
        return setup

    return change


def other_optimizer(setup: trimtab.Setup) -> trimtab.Setup | None:
    """SGD in place of Adam and the other way round, at a usual rate; None where a loop of its own holds the optimizer."""
    if setup.step is not None or setup.scheduler is not None or len(setup.optimizers) != 1:
        return None
    old = setup.optimizers[0]
    groups = [{"params": group["params"]} for group in old.param_groups]
    new = torch.optim.Adam(groups, 1e-3) if isinstance(old, torch.optim.SGD) else torch.optim.SGD(groups, 0.05)
    return replace(setup, optimizer=new)


def quarter(setup: trimtab.Setup) -> trimtab.Setup:
    """A quarter of the steps."""
    return replace(setup, steps=max(setup.steps // 4, 10))


VARIANTS: dict[str, Callable[[trimtab.Setup], trimtab.Setup | None]] = {
    "as it is": lambda setup: setup,
    "rates / 10": rates(0.1),
    "rates / 3": rates(1 / 3),
    "rates x 3": rates(3.0),
    "rates x 10": rates(10.0),
    "other optimizer": other_optimizer,
    "a quarter of the steps": quarter,
    "rates x 30": rates(30.0),
}


def problems() -> Iterator[tuple[str, str, Make]]:
    """The broken runs of the project's own bank: name, fault, how to make them."""
    sys.path.insert(0, str(PROBLEMS))
    bank: Any = importlib.import_module("problems")
    for other in ("problems_wiring", "problems_optimization", "problems_probes"):
        importlib.import_module(other)
    for problem in bank.PROBLEMS:
        yield (
            problem.name,
            problem.code,
            lambda arm, seed, made=problem.make: bank.build(made, arm == "broken", seed=seed),
        )


def cases(folder: Path) -> Iterator[tuple[str, str, Make]]:
    """The same of a folder of case files."""
    sys.path.insert(0, str(folder))
    for path in sorted(folder.glob("*.py")):
        if path.stem not in NOT_CASES:
            module = _load(path)
            if module.FAULT != "none":
                yield path.stem, module.FAULT, lambda arm, seed, path=path: _case(path, arm, seed)


def _load(path: Path) -> Any:
    spec = importlib.util.spec_from_file_location(f"case_{path.stem}", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def _case(path: Path, arm: str, seed: int) -> trimtab.Setup:
    os.environ["CASE_SEED"] = str(seed)
    module = _load(path)
    module.SEED = seed
    run = getattr(module, arm)()
    own = run.step

    def step(setup: trimtab.Setup, batch: Any) -> torch.Tensor:
        held = run._replace(model=setup.model, optimizer=setup.optimizer, scheduler=setup.scheduler)
        loss: torch.Tensor = own(held, *batch)
        return loss

    return trimtab.Setup(
        run.model,
        run.optimizer,
        run.batches,
        lambda model, batch: run.loss(model, *batch),
        run.steps,
        step=None if own is None else step,
        scheduler=run.scheduler,
    )


def diagnosed(setup: trimtab.Setup) -> dict[str, Any]:
    """The roots above a note, and what the trials said that were to tell them apart."""
    with tempfile.TemporaryDirectory() as folder:
        record = Path(folder) / "run.db"
        diagnosis = trimtab.diagnose(setup, store=record)
        removal = (Record.open(record).facts.get("probes") or {}).get("removal") or {}
    return {"roots": [f.code for f in diagnosis.roots if f.severity != "note"], "removal": removal}


def run(options: argparse.Namespace) -> None:
    """Diagnose the bank and write a row for each run."""
    bank = _chosen(options)
    with options.out[0].open("a") as rows:
        for seed in options.seeds:
            for name, fault, make in bank:
                for variant in options.variants:
                    change = VARIANTS[variant]
                    setup = change(make("broken", seed))
                    if setup is None:
                        continue
                    row: dict[str, Any] = {"name": name, "seed": seed, "variant": variant, "fault": fault}
                    try:
                        row |= diagnosed(setup)
                        if row["roots"] != [fault] and variant != "as it is":
                            twin = change(make("healthy", seed))
                            assert twin is not None
                            row["twin"] = diagnosed(twin)["roots"]
                    except Exception as error:  # the run itself broke under the variant
                        row["error"] = f"{type(error).__name__}: {error}"[:200]
                    rows.write(json.dumps(row, default=str) + "\n")
                    rows.flush()
                    if row.get("roots") != [fault]:
                        print(
                            name,
                            seed,
                            variant,
                            fault,
                            row.get("roots"),
                            row.get("twin"),
                            row.get("error", ""),
                            flush=True,
                        )


def counts(row: dict[str, Any]) -> bool:
    """Whether the run has the one known fault and no other, as far as its healthy twin tells."""
    return "error" not in row and (row["roots"] == [row["fault"]] or not row.get("twin"))


def report(options: argparse.Namespace) -> None:
    """Print, for each file and standing, what is said and how often it was true."""
    print("| bank | runs | with one root | with several | " + " | ".join(RIGHT) + " |")
    print("|---|---|---|---|" + "---|" * len(RIGHT))
    print("| said | | | | " + " | ".join(f"{confidence(stands):.2f}" for stands in RIGHT) + " |")
    for path in options.out:
        rows = [json.loads(line) for line in path.read_text().splitlines()]
        rows = [row for row in rows if "error" not in row and row["roots"] and counts(row)]
        right, of = Counter[str](), Counter[str]()
        for row in rows:
            for code in row["roots"]:
                stands = standing(code, row["roots"], row.get("removal", {}))
                of[stands] += 1
                right[stands] += code == row["fault"]
        several = sum(len(row["roots"]) > 1 for row in rows)
        cells = " | ".join(f"{right[stands]} of {of[stands]}" for stands in RIGHT)
        print(f"| {path.stem} | {len(rows)} | {len(rows) - several} | {several} | {cells} |")


RIVALS = ("symmetric-init", "learning-rate-too-high", "excessive-weight-decay")


def trials(options: argparse.Namespace) -> None:
    """Try each known fault that has a mend against roots that the run does not have, and count for whom the trial decides."""
    right, wrong, still_open = Counter[str](), Counter[str](), Counter[str]()
    for name, fault, make in _chosen(options):
        for rival in RIVALS if fault in MENDS else ():
            if not rivals([fault, rival]):
                continue
            setup = make("broken", options.seeds[0])
            start = start_of(setup)
            found = {} if start is None else probes.removal.probe(setup, start, [fault, rival])
            decided = found.get("decided")
            (still_open if decided is None else right if decided == fault else wrong)[rival] += 1
            if decided not in (None, fault):
                print(name, fault, rival, found, flush=True)
    print("| rival | decided, right | decided, wrong | open |\n|---|---|---|---|")
    for rival in RIVALS:
        print(f"| {rival} | {right[rival]} | {wrong[rival]} | {still_open[rival]} |")


def _chosen(options: argparse.Namespace) -> list[tuple[str, str, Make]]:
    bank = list(problems() if options.cases is None else cases(options.cases))
    return [entry for entry in bank if not options.only or entry[0] in options.only]


def main() -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("do", choices=("run", "report", "trials"))
    parser.add_argument("--out", type=Path, nargs="+", default=[Path("roots.jsonl")])
    parser.add_argument("--cases", type=Path)
    parser.add_argument("--only", nargs="+", default=[])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS))
    options = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    {"run": run, "report": report, "trials": trials}[options.do](options)


if __name__ == "__main__":
    main()
