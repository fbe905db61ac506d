"""How many faults does trimtab mend, and how many does random search mend with the same budget?

    python benchmarks/bench_repair.py --cases DIR [NAME ...] [--seeds 1] [--json FILE]

A case is a Python file with `broken()` and `healthy()`, each giving an object with model, optimizer, batches, loss(model, x, y),
evaluate, steps, step and scheduler as a `trimtab.Setup` has them (but for `step(run, x, y)`), and with FAULT, a finding code, or "none".
The seed is the file's global SEED, or the environment variable CASE_SEED.

All arms get the same diagnosis, the same budget of training steps, the same successive halving and the same proof. Guided: what the
families answer to the root cause. Random: as many changes drawn by lot from the families that answer that root cause, so that the
diagnosis still narrows the choice. Blind: as many drawn by lot from all families. A case counts as mended where a repair is proved and, applied to a broken run of a seed that was not seen, closes at least 80 % of the gap between
broken and healthy.
"""

import argparse
import functools
import importlib.util
import json
import os
import random
import statistics
import sys
import time
import warnings
from pathlib import Path

import torch

import trimtab
from trimtab.repairs.change import answers_to
from trimtab.repairs.families import FAMILIES
from trimtab.repairs.search import MOST

CLOSED = 0.8
UNSEEN = 500
HELPERS = {"case", "score", "train"}


def load(path):
    """The file as a module of its own: no state is shared between seeds."""
    if "case" not in sys.modules and path.with_name("case.py").is_file():
        execute(path.with_name("case.py"), "case")
    return execute(path, f"case_{path.stem}")


def execute(path, name):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def build(path, arm, base, seed):
    os.environ["CASE_SEED"] = str(base + seed)
    module = load(Path(path))
    module.SEED = base + seed
    run = getattr(module, arm)()

    def step(setup, batch):
        now = run._replace(model=setup.model, optimizer=setup.optimizer, scheduler=setup.scheduler)
        return run.step(now, *batch)

    return trimtab.Setup(
        run.model,
        run.optimizer,
        run.batches,
        lambda model, batch: run.loss(model, *batch),
        steps=run.steps,
        evaluate=run.evaluate,
        step=None if run.step is None else step,
        scheduler=run.scheduler,
    )


def by_lot(finding, patient):
    """As many changes as the search takes, from the families that answer this root cause."""
    return drawn([family for family in FAMILIES if finding.code in family.answers], finding, patient)


def blindly(finding, patient):
    """As many changes as the search takes, from all families."""
    return drawn(FAMILIES, finding, patient)


def drawn(families, finding, patient):
    rng = random.Random(finding.code)
    taken = 0
    while families and taken < MOST:
        change = rng.choice(families).draw(patient, rng)
        if patient.takes(change):
            taken += 1
            yield change


def score(setup, evaluate):
    for _ in setup.train():
        pass
    setup.model.eval()
    return float(evaluate(setup.model))


def mended(path, base, propose):
    make = functools.partial(build, str(path), "broken", base)
    began = time.perf_counter()
    found = trimtab.repair(make, progress=False, propose=propose)
    row = {
        "proved": found.best is not None,
        "closed": None,
        "repair": None if found.best is None else found.best.repair.summary,
        "runs": round(found.steps / found.run_steps, 1),
        "seconds": round(time.perf_counter() - began, 1),
    }
    if found.best is not None:
        fresh = functools.partial(build, str(path), base=base, seed=UNSEEN)
        broken, healthy = (score(s, s.evaluate) for s in (fresh(arm="broken"), fresh(arm="healthy")))
        setup = fresh(arm="broken")
        evaluate = setup.evaluate
        got = score(found.best.apply(setup), evaluate)
        gap = healthy - broken
        row["closed"] = round((got - broken) / gap, 3) if gap == gap and gap else float(got >= healthy)
        row["scores"] = [broken, got, healthy]
    row["mended"] = row["closed"] is not None and row["closed"] >= CLOSED
    return row


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--cases", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--arm", choices=("guided", "random", "blind", "all"), default="all")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    torch.set_num_threads(1)
    warnings.filterwarnings("ignore")
    arms = {"guided": answers_to, "random": by_lot, "blind": blindly}
    arms = arms if args.arm == "all" else {args.arm: arms[args.arm]}
    rows = []
    for path in sorted(args.cases.glob("*.py")):
        if path.stem in HELPERS or (args.names and path.stem not in args.names) or load(path).FAULT == "none":
            continue
        for seed in range(args.seeds):
            for arm, propose in arms.items():
                try:
                    row = mended(path, 1000 * (seed + 1), propose)
                except Exception as error:  # the others are still to be counted
                    row = {"proved": False, "mended": False, "repair": f"{type(error).__name__}: {error}"[:200]}
                rows.append({"case": path.stem, "seed": seed, "arm": arm, **row})
                mark = "mended" if row["mended"] else "proved" if row["proved"] else "-"
                told = f"{path.stem:34} {arm:7} {mark:7} closed {row.get('closed')!s:7} {row.get('runs', 0):5} runs"
                print(f"{told} {row.get('seconds', 0):6} s  {row['repair'] or ''}", flush=True)
                if args.json:
                    args.json.write_text(json.dumps(rows, indent=1))
    for arm in arms:
        of = [row for row in rows if row["arm"] == arm]
        runs = [row["runs"] for row in of if "runs" in row]
        print(
            f"{arm}: mended {sum(r['mended'] for r in of)}/{len(of)}, proved {sum(r['proved'] for r in of)}/{len(of)}, "
            f"{statistics.median(runs):.1f} training runs a case (at most {max(runs):.1f})"
        )


if __name__ == "__main__":
    main()
