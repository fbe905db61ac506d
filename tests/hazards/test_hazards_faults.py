"""Hazard 14: an error inside a hook of ours. The run goes on to the same end, one warning says so, and the record is closed."""

import warnings

import pytest
import torch
from recording_cases import hooks
from situations import Net, learn, seed
from torch import nn

from trimtab import _torch
from trimtab.errors import UsageError
from trimtab.recording import Record, Recorder
from trimtab.recording.clearing import Clearing
from trimtab.recording.closeup import CloseUp
from trimtab.recording.journal import Journal
from trimtab.recording.parameters import ParameterReader
from trimtab.recording.passenger import Seat
from trimtab.recording.roster import Roster
from trimtab.recording.store import Store
from trimtab.recording.unseen import Sightings
from trimtab.runner.discovery import Discovery
from trimtab.runner.watch import watch
from trimtab.stats import Tape

PLACES = {
    "a forward call begins": (Recorder, "_read_inputs"),
    "what is looked for": (Recorder, "_cannot_look"),
    "weights are looked at": (ParameterReader, "knows"),
    "a module has run": (Tape, "measure"),
    "what cannot be seen": (Sightings, "called"),
    "a close look": (CloseUp, "look"),
    "a pass begins": (ParameterReader, "mark"),
    "the loss": (Recorder, "_keep_loss"),
    "what was cleared": (Clearing, "look"),
    "a pass has ended": (ParameterReader, "read_raw"),
    "who rides along": (Seat, "backward_ended"),
    "the optimizer begins": (ParameterReader, "before_step"),
    "the optimizer is done": (ParameterReader, "after_step"),
    "gradients are remembered": (Clearing, "remember"),
    "a step is written": (Journal, "write"),
    "the store": (Store, "commit"),
    "the roster": (Roster, "facts"),
}


def boom(*args, **kwargs):
    raise ZeroDivisionError("of our own")


def train(steps=6, at=None, place=None, monkeypatch=None, store=None):
    seed()
    net = Net(nn.Sequential(nn.Dropout(0.2), nn.ReLU(inplace=True)))
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)
    step, losses = learn(net, optimizer), []
    watching = None if at is None else watch(net, optimizer, every=1, store=store)
    for i in range(steps):
        if i == at:
            monkeypatch.setattr(*place, boom)
        losses.append(step().item())
    if watching is not None:
        watching.close()
        monkeypatch.undo()
        assert hooks(net, optimizer) == []
    return losses, [p.detach().clone() for p in net.parameters()], torch.get_rng_state()


ONCE = {"what cannot be seen", "the roster"}
"""Reached at the first step only."""


@pytest.mark.parametrize(
    ("place", "at"), [(place, at) for place in PLACES for at in (0, 2) if not (at and place in ONCE)]
)
def test_an_error_in_any_hook_of_ours_is_one_warning(place, at, monkeypatch, tmp_path):
    backward, scale = torch.autograd.backward, torch.amp.GradScaler.scale
    plain = train()
    store = tmp_path / "record.db"
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        watched = train(at=at, place=PLACES[place], monkeypatch=monkeypatch, store=store)
    assert plain[0] == watched[0]
    assert all(torch.equal(a, b) for a, b in zip(plain[1], watched[1], strict=True))
    assert torch.equal(plain[2], watched[2])
    assert (torch.autograd.backward, torch.amp.GradScaler.scale) == (backward, scale)
    assert not _torch._listeners
    record = Record.open(store)
    assert record.finished
    messages = [str(w.message) for w in caught if "trimtab" in str(w.message)]
    if record.facts.get("fault"):
        assert messages == ["trimtab stopped watching: ZeroDivisionError: of our own"]
        assert record.step_count <= at + 1
    else:  # somebody who rides along, whose faults cost a prediction and no record
        assert place == "who rides along"
        assert record.step_count == 6


@pytest.mark.parametrize("place", ["_found", "_note_place"])
def test_an_error_while_a_script_is_looked_through(place, shell, net):
    """The same for the hooks by which `trimtab run` finds models and optimizers."""
    shell.write("s.py", net, "for _ in range(4):\n    print(train(1))")
    shell.write(
        "broken.py",
        f"""
        import sys
        from trimtab.runner.discovery import Discovery
        def boom(*args):
            raise ZeroDivisionError("of our own")
        Discovery.{place} = boom
        from trimtab.cli import main
        sys.argv = ["trimtab", "run", "--no-store", "s.py"]
        main()
        """,
    )
    assert hasattr(Discovery, place)
    plain, done = shell.plain("s.py"), shell.plain("broken.py", real=True)
    assert done.out == plain.out
    assert done.err.count("stopped watching: ZeroDivisionError: of our own") == 1
    assert done.status == 0


def test_ctrl_c_inside_a_hook_of_ours_is_the_users(monkeypatch, tmp_path):
    """It is no fault: it ends the user's loop, and the record is whole up to there."""
    real, count = Tape.measure, []

    def measure(self, tensor):
        count.append(1)
        if len(count) == 60:
            raise KeyboardInterrupt
        return real(self, tensor)

    monkeypatch.setattr(Tape, "measure", measure)
    net = Net(nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    step = learn(net, optimizer)
    with pytest.raises(KeyboardInterrupt), watch(net, optimizer, every=1, store=tmp_path / "record.db"):
        for _ in range(20):
            step()
    assert hooks(net, optimizer) == []
    record = Record.open(tmp_path / "record.db")
    assert record.finished
    assert 0 < record.step_count < 20
    assert record.facts["how"].startswith("KeyboardInterrupt")
    assert "fault" not in record.facts


@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")
def test_a_scripted_model_is_refused_with_what_to_do():
    net = torch.jit.script(nn.Linear(3, 2))
    with pytest.raises(UsageError, match=r"watch it before torch\.jit\.script"):
        watch(net, torch.optim.SGD(net.parameters(), 0.1))
