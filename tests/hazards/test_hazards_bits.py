"""In every situation: the watched run is the plain run to the last bit, and what can be seen is seen once."""

import functools
import warnings
from pathlib import Path

import pytest
import situations
from recording_cases import count, record_of, watching
from situations import SITUATIONS, digest, seed, train

from trimtab.recording import Record

STEPS = 12
HERE = Path(situations.__file__)
OWN_LOSS = {"per_sample_gradients"}
"""No backward pass, so no loss."""

SITUATIONS_EVERY = {"generator_and_critic": 2}
"""Steps of optimizers in one of the run's."""

WARNS = {"odd_outputs": "torch.quantize_per_tensor", "compiled_loss_and_step": "", "compiled_autograd": ""}
"""Torch's own, of the plain run too."""


def run(name, around=lambda run: None):
    """One run of a situation.

    Args:
        name: Its name.
        around: Gives a context manager for the training, or None.

    Returns:
        The digest of all that it leaves behind, and the run.
    """
    with warnings.catch_warnings():
        if name in WARNS:
            warnings.filterwarnings("ignore", WARNS[name])
        seed()
        started = SITUATIONS[name]()
        context = around(started)
        try:
            if context is None:
                return digest(train(started, STEPS)), started, None
            with context as recorder:
                found = digest(train(started, STEPS))
            return found, started, record_of(recorder)
        finally:
            started.end()


@functools.cache
def plain(name):
    return run(name)[0]


@pytest.mark.parametrize("name", SITUATIONS)
def test_not_one_bit_changes_and_all_is_seen(name):
    """Every step recorded in full."""
    found, started, record = run(name, lambda run: watching(run.models, run.optimizers))
    assert found == plain(name)
    steps = STEPS * started.every
    assert record.steps.tolist() == list(range(steps))
    assert record.loss_seen.all() or name in OWN_LOSS
    per_step = steps // STEPS
    for module, entries in started.sees.items():
        for step in range(0, steps, per_step):
            brought = sum(count(record, module, "output", step + i) for i in range(per_step))
            # LBFGS runs its closure several times in a step, a generator's pass ends in its critic as well
            assert brought == entries or (name == "lbfgs" and brought % entries == 0 < brought) or per_step > 1, module
            assert count(record, module, "gradient", step) > 0 or name == "frozen", module
    places = [place for place in record.unseen if place.model == 0 and place.reason != "never called"]
    assert sorted(place.name for place in places) == sorted(started.unseen), record.unseen


@pytest.mark.parametrize("name", SITUATIONS)
def test_a_sparse_schedule_changes_nothing_either(name):
    """Steps that are recorded and steps that are not, in turn."""
    found, _, record = run(name, lambda run: watching(run.models, run.optimizers, every=5))
    assert found == plain(name)
    assert record.step_count == STEPS * SITUATIONS_EVERY.get(name, 1)


@pytest.mark.parametrize("name", SITUATIONS)
def test_as_a_script(name, shell):
    """The same under `trimtab run`, which finds model and optimizer by itself."""
    done = shell.trimtab("run", "--every", "1", HERE, name)
    assert done.status == 0, done.err
    assert done.out.strip() == plain(name), done.err
    assert "stopped watching" not in done.err
    assert "Warning" not in done.err or name in WARNS, done.err
    record = Record.open(shell.records[-1])
    assert record.step_count == STEPS * SITUATIONS_EVERY.get(name, 1)
    assert not record.facts.get("fault")
