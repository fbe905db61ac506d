"""`ill-conditioned`: inputs so correlated that gradient descent has no time for the directions in which they hardly vary."""

import math
from collections.abc import Iterator

from trimtab._messages import say
from trimtab.diagnosis.conditioning import Modes
from trimtab.diagnosis.found import Found
from trimtab.diagnosis.view import View
from trimtab.report import Evidence, Finding, Repair

HALF = math.log(2)
"""At the middle of the stable range (eta = 1 / lambda_max), k steps leave more than half of the error along the directions with
lambda / lambda_max under this over k."""

SHARE = 0.3
"""Share of what is left of the loss that a linear map along these directions would take off, from which on they are the trouble."""

COSTS = 0.05
"""The same as a share of the baseline: what a run does not get because of it."""

BREAKS = 0.2
"""From this share of the baseline on it is an error."""

SCALE = 100.0
"""Condition number of the standardized inputs under which a scaling of the columns mends it."""


def find(view: View) -> Iterator[Found]:
    """What is left to learn lies along directions that no stable step reaches within the run."""
    facts, progress = view.record.facts.get("modes"), view.progress
    if not facts or progress.nonfinite is not None or not progress.last > 0 or not progress.baseline > 0:
        return
    modes, cut = Modes(**facts), HALF / _steps(view)
    flat, steep = modes.share(0.0, cut), modes.share(cut)
    lost = flat * progress.last / progress.baseline
    if flat < SHARE or steep > flat / 2 or lost < COSTS:  # what is left along steep ones is not for want of curvature
        return
    layer = view.name(0, modes.layer)
    count = sum(value / modes.eigenvalues[0] <= cut for value in modes.eigenvalues)
    correlated = modes.standardized > SCALE
    yield Found(
        Finding(
            code="ill-conditioned",
            severity="error" if lost >= BREAKS else "warning",
            where=("data", layer),
            summary=say(
                "{flat:.0%} of what is left of the loss lies along {count} directions of the inputs of {layer} with less than {cut:.1g} of the largest "
                "curvature, along which no stable rate gets anywhere in {steps} steps: {why}.",
                flat=flat,
                count=count,
                layer=layer,
                cut=cut,
                steps=view.record.step_count,
                why=say("the inputs are correlated, and stay so when their columns are standardized")
                if correlated
                else say("their columns are of too different sizes"),
            ),
            evidence=(
                Evidence(
                    say("share of the residual that a linear map along the flat directions takes off"), flat, 0.0, SHARE
                ),
                Evidence(say("the same along the steep directions"), steep, 0.0),
                Evidence(say("loss that costs, over the loss of a constant answer"), lost, 0.0, COSTS),
                Evidence(say("condition number of the inputs"), modes.condition, 1.0),
                Evidence(say("condition number of the inputs, standardized"), modes.standardized, 1.0, SCALE),
            ),
            repairs=_repairs(correlated),
            location=view.place("forward"),
        )
    )


def _steps(view: View) -> float:
    """Steps of the run, as many more as a momentum makes of them."""
    settings = [group["settings"] for facts in view.record.optimizers for group in facts.get("groups", ())]
    momenta = [s["momentum"] for s in settings if isinstance(s.get("momentum"), (int, float)) and s["momentum"] < 1]
    return max(view.record.step_count, 1) / (1 - max(momenta, default=0.0))


def _repairs(correlated: bool) -> tuple[Repair, ...]:
    whiten = Repair(
        say(
            "Decorrelate the inputs with the training set's covariance (whitening), or take orthogonal polynomials instead of powers"
        ),
        "mean = x_train.mean(0)\n_, s, v = torch.linalg.svd(x_train - mean, full_matrices=False)\n"
        "turn = v.T / s * len(x_train) ** 0.5\nx_train, x_test = (x_train - mean) @ turn, (x_test - mean) @ turn",
    )
    scale = Repair(
        say("Standardize every feature with the training set's mean and spread"),
        "mean, std = x_train.mean(0), x_train.std(0)\nx_train, x_test = (x_train - mean) / std, (x_test - mean) / std",
    )
    second = Repair(
        say(
            "Use a method that knows the curvature: least squares in closed form for a linear model, L-BFGS for a small one"
        ),
        "optimizer = torch.optim.LBFGS(model.parameters(), line_search_fn='strong_wolfe')",
    )
    return (whiten, second) if correlated else (scale, second)
