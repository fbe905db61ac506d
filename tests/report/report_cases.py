"""Diagnoses as real runs give them, and hostile ones."""

import math

from trimtab.report import Diagnosis, Evidence, Finding, Location, Repair, RunFacts

HE = """for layer in model.modules():
    if isinstance(layer, torch.nn.Linear):
        torch.nn.init.kaiming_normal_(layer.weight, nonlinearity="relu")
        torch.nn.init.zeros_(layer.bias)"""

RUN = RunFacts(
    name="train.py",
    models=("Sequential, 41,610 parameters",),
    optimizers=("SGD, lr 0.01, momentum 0.9",),
    steps=300,
    recorded=22,
    first_loss=2.30341,
    last_loss=2.30118,
    watching=0.031,
    record=".trimtab/train-20250101-120000.db",
    unseen=("torch.relu called in Net.forward: a function, no module",),
)

VANISHING = Finding(
    code="vanishing-gradient",
    severity="error",
    where=tuple(f"body.{i}" for i in range(0, 18, 2)),
    summary="Each layer multiplies the squared gradient by 0.166 where 1 would keep it: body.0 gets 1.67e-07 of it.",
    evidence=(
        Evidence("squared gradient, per layer", 0.16612, 1.0, 1.35, "x"),
        Evidence("squared gradient at body.0 over that at head", 1.6666e-7, 1.0, 8.1, "x", 0),
        Evidence("weight variance times inputs", 1 / 3, 2.0, 0.1, site="body.0"),
    ),
    repairs=(
        Repair("He initialization: draw weights with variance 2/fan_in, which a ReLU keeps", HE),
        Repair("a normalization layer before each ReLU, or skip connections around pairs of layers"),
    ),
    reference="arXiv:1502.01852",
    location=Location("train.py", 23),
)
COLLAPSE = Finding(
    code="signal-collapse",
    severity="warning",
    where=VANISHING.where[4:],
    summary="Any two inputs give outputs of correlation 0.998, so that the last layer can hardly tell them apart.",
    evidence=(Evidence("correlation", 0.998, 0.43, 0.1),),
    causes=("vanishing-gradient",),
)
SLOW = Finding(
    code="learning-rate-too-low",
    severity="warning",
    where=("optimizer",),
    summary="The loss moved by less than its own noise.",
    causes=("signal-collapse",),
)
CLIPPED = Finding("clipping-dominates", "note", ("loop",), "Clipping acted in 4 of the first 10 steps and never later.")
BAD_DATA = Finding(
    code="nonfinite-data",
    severity="error",
    where=("data",),
    summary="3 of 12,000 input values are NaN.",
    evidence=(Evidence("non-finite input values", 3, 0), Evidence("loss of that batch", math.nan, math.inf, -math.inf)),
    repairs=(Repair("fill or drop the missing cells", "x = torch.nan_to_num(x)"),),
)

ONE_ROOT = Diagnosis((VANISHING, COLLAPSE, SLOW, CLIPPED), RUN)
SEVERAL = Diagnosis((VANISHING, BAD_DATA, COLLAPSE), RUN)
NOTES = Diagnosis((CLIPPED,), RUN)
HEALTHY = Diagnosis((), RUN)
UNFINISHED = Diagnosis((BAD_DATA,), RunFacts("train.py", steps=57, recorded=9, first_loss=math.inf, finished=False))

EVIL = "[red]owned[/red].\x1b[31m\x07\u202e" + "very_long_module_name_" * 12
HOSTILE = Diagnosis(
    (
        Finding(
            code="an-unknown-code",
            severity="error",
            where=(EVIL, "模块." * 60, "b", "c", "d"),
            summary=EVIL + " " + "word " * 60,
            evidence=(
                Evidence(EVIL, 1e300, -math.inf, 1e-300, "x", 10**9, EVIL),
                Evidence("s", EVIL, EVIL, 3.0, "y"),
                *[Evidence("more", i) for i in range(20)],
            ),
            repairs=(Repair(EVIL, f"model.{EVIL} = 1\n\tif x:\r\n  y"), *[Repair("r" * 300)] * 5),
            location=Location(EVIL, 3),
            reference=EVIL,
        ),
        *[Finding("vanishing-gradient", "warning", (EVIL,), EVIL, causes=("an-unknown-code",))] * 12,
        *[Finding("frozen-parameters", "note", (EVIL,), EVIL)] * 12,
    ),
    RunFacts(EVIL, (EVIL,), (EVIL,) * 9, 10**9, 10**8, -1e-9, 1e9, 12.0, EVIL, (EVIL,)),
)
ALL = {
    "one root": ONE_ROOT,
    "several": SEVERAL,
    "notes": NOTES,
    "healthy": HEALTHY,
    "unfinished": UNFINISHED,
    "hostile": HOSTILE,
    "empty": Diagnosis(),
}
