"""Every problem of the bank: its root named first and located, its twin and the healthy runs left in peace."""

import re

import problems_wiring  # noqa: F401  which lists its problems with the others
import pytest
from problems import HEALTHY, HEAVY, PROBLEMS, build, eight_layers, hidden

import trimtab

SEEDS = [0, pytest.param(1, marks=pytest.mark.slow), pytest.param(2, marks=pytest.mark.slow)]


def listed(problems):
    """Parameters with their tiers."""
    found = []
    for p in problems:
        marks = [pytest.mark.slow] if p.slow else []
        found.append(pytest.param(p, id=p.name, marks=marks))
    return found


def odd(makes):
    return [pytest.param(m, id=m.__name__, marks=[pytest.mark.slow] if m.__name__ in HEAVY else []) for m in makes]


def loud(diagnosis):
    """What is said above a note, as code and places."""
    return [(f.code, f.where) for f in diagnosis.at_least("warning")]


def begins_high(diagnosis):
    """A first loss that is too high is how many faults begin; where it is said, it has to be their consequence."""
    return {f.code for f in diagnosis.findings if f.code == "loss-at-init-off" and f.causes}


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("problem", listed(PROBLEMS))
def test_the_root_comes_first_and_is_located(problem, seed):
    diagnosis = trimtab.diagnose(build(problem.make, True, seed=seed))
    said = loud(diagnosis)
    assert said, "nothing above a note was said"
    root = diagnosis.findings[0]
    assert root is diagnosis.roots[0]
    assert root.code == problem.code, said
    assert root.where, said
    assert set(root.where) <= set(problem.where), said
    assert {code for code, _ in said} <= {problem.code, *problem.also, *begins_high(diagnosis)}, said
    assert root.repairs
    assert root.evidence


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("problem", listed(PROBLEMS))
def test_the_healthy_twin_is_left_in_peace(problem, seed):
    diagnosis = trimtab.diagnose(build(problem.make, False, seed=seed))
    assert loud(diagnosis) == []
    assert diagnosis.healthy


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("make", odd(HEALTHY))
def test_odd_and_healthy_runs_are_left_in_peace(make, seed):
    diagnosis = trimtab.diagnose(build(make, seed=seed))
    assert loud(diagnosis) == []
    assert diagnosis.healthy


@pytest.mark.parametrize(
    ("kind", "code", "where", "starts", "also"),
    [
        (
            "vanishing",
            "vanishing-gradient",
            hidden(8),
            "It starts at layer 14, next to the output",
            {"signal-collapse"},
        ),
        (
            "exploding",
            "exploding-gradient",
            hidden(9),
            "at layer 0 it is .* times that at layer 16",
            {"learning-rate-too-high", "nonfinite-loss", "dead-units"},
        ),
        (
            "dead",
            "dead-units",
            ("6", "7"),
            "64 of 64 units behind 6 are off",
            {"vanishing-gradient", "signal-collapse"},
        ),
    ],
)
def test_the_comparison_runs(kind, code, where, starts, also):
    """The runs on which other tools were compared: the right root, at all the right layers, starting at the right one.

    Every layer is drawn wrongly in the first two: the gradient fades or grows all the way from the output to layer 0.
    """
    diagnosis = trimtab.diagnose(build(eight_layers, kind))
    root = diagnosis.roots[0]
    assert (root.code, root.severity) == (code, "error")
    assert root.where == where
    assert re.search(starts, root.summary)
    assert {said for said, _ in loud(diagnosis)} <= {code, *also, *begins_high(diagnosis)}


def test_the_healthy_comparison_run():
    diagnosis = trimtab.diagnose(build(eight_layers, "healthy"))
    assert loud(diagnosis) == []
