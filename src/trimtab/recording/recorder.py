"""The recorder: turns taps, backward passes and optimizer steps into the rows of a record. It gives no verdict.

A *step* is one optimizer step, or several that follow one another without a backward pass between them. Hooks exist only on
recorded steps: entry hooks from the end of the step before, taps from the first forward call that can train.
"""

import contextlib
import functools
import math
import os
import sys
import threading
import time
import warnings
import weakref
from collections.abc import Callable, Sequence
from typing import Any, Concatenate, ParamSpec

import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.optim.optimizer import register_optimizer_step_post_hook

from trimtab import _distributed, _torch
from trimtab.errors import RecordError, UsageError
from trimtab.recording import batch_statistics, clock, details, sessions, unseen
from trimtab.recording.attention import attentions
from trimtab.recording.broadcasting import broadcasts
from trimtab.recording.clearing import Clearing
from trimtab.recording.closeup import CloseUp
from trimtab.recording.fed import Fed
from trimtab.recording.graph import loss_facts, loss_scale
from trimtab.recording.journal import Journal, numbers
from trimtab.recording.listening import Ear, let_go, take_hooks_off
from trimtab.recording.parameters import ParameterReader
from trimtab.recording.passenger import Boarding, Seat
from trimtab.recording.roster import Roster, rates
from trimtab.recording.schedule import Schedule
from trimtab.recording.sites import SiteTable
from trimtab.recording.store import Store
from trimtab.recording.taps import End, Entry, Hook, Tap, gradient_hook
from trimtab.recording.walk import measurable, tensors
from trimtab.recording.watched import WatchedModel
from trimtab.recording.window import Window
from trimtab.stats import Tape, warm_up

MAX_OUTPUTS = 4
"""Tensors that are measured of one module's output."""

LAST_BIT = 62
"""Bit of an optimizer in a record's integers, shared by all that come later: a net whose every parameter has its own."""


P = ParamSpec("P")


def _timed(method: Callable[Concatenate["Recorder", P], None]) -> Callable[Concatenate["Recorder", P], None]:
    """Count the seconds that a listener's method takes as spent on watching, and let nobody who rides along see what it does."""

    @functools.wraps(method)
    def timed(self: "Recorder", /, *args: P.args, **kwargs: P.kwargs) -> None:
        begin = time.perf_counter()
        rider = self._seat.rider
        if rider is not None:
            listening, rider.listening = rider.listening, False
        try:
            method(self, *args, **kwargs)
        finally:
            if rider is not None:
                rider.listening = listening
            self.spent += time.perf_counter() - begin

    return timed


_started: "weakref.WeakSet[Recorder]" = weakref.WeakSet()


def _forked() -> None:
    """A forked process inherits the hooks, but the record is its parent's."""
    for recorder in _started:
        recorder._running = False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)


class Recorder:
    """Watches models and optimizers and writes a record.

    Attributes:
        store: Where the record goes.
        schedule: Which steps are recorded in full.
        roster: Who is watched.
        step: Number of the open step.
        on_step: Called once with the number of each finished step; may raise to end the run. Right after the optimizer's step
            where it is known to be the last of them, else when the next step begins.
        on_fault: Called when a fault of trimtab's own ends the watch.
        spent: Seconds spent inside trimtab's own hooks so far.
        fault: What went wrong inside a hook, if anything did; nothing is watched from then on.
    """

    def __init__(
        self, store: Store, schedule: Schedule | None = None, name: str = "", board: Boarding | None = None
    ) -> None:
        self.store = store
        self.schedule = schedule or Schedule()
        self.name = name
        self.roster = Roster()
        self.on_step: Callable[[int], None] | None = None
        self.on_fault: Callable[[], None] | None = None
        self.fault: Exception | None = None
        self.spent = store.past.spent
        self._sites = SiteTable(store.past.sites)
        self._tape = Tape()
        self._journal = Journal(store, self._sites, self._tape)
        self._parameters = ParameterReader(self.models, self._sites, self._tape)
        self._clearing = Clearing()
        self._unseen = unseen.Sightings()
        self._close_up = CloseUp(self._sites)
        self._handles: list[Any] = []
        self._leaf_handles: list[Any] = []
        self._scope = 0
        self._owner: weakref.ref[nn.Module] | None = None
        self._last: tuple[weakref.ref[Tensor], int] | None = None
        self._pass = 0
        self._active = False
        self._stepped = False
        self._told = -1
        self._end: Exception | None = None
        self._lost = 0
        self._took_turns = 0
        self._have_stepped = 0
        self._running = False
        self._ended = False
        self._thread = 0
        self._closing = threading.Lock()
        self._batch: Any = None
        self._fed = Fed()
        self._data = Fed()
        self._joined = False
        # What is foretold holds for the first step of the run, and is kept by the first rank alone.
        self._seat = Seat(None if store.past.facts or _distributed.rank() else board)
        self.step = store.past.step
        self._window = self._open()
        self._ear = Ear(self)
        weakref.finalize(self, let_go, self._ear, self.models, self._handles, self._leaf_handles).atexit = False

    # ------------------------------------------------------------------------------------------------ life

    @property
    def models(self) -> list[WatchedModel]:
        """The watched models."""
        return self.roster.models

    @property
    def passes(self) -> int:
        """Backward passes seen so far."""
        return self._pass

    @property
    def seconds(self) -> float:
        """Seconds since the run began."""
        return self._journal.seconds

    def newest(self) -> tuple[float | None, float | None]:
        """Loss and learning rate of the step that has ended last, for who shows a run that goes on; a device that has them is waited for.

        Returns:
            None where none was seen. In a distributed run they are this rank's own.
        """
        window = self._window
        losses, rate = (window.losses, window.rate()) if window.optimizers else self._journal.last
        return sum(numbers(losses)) if losses else None, None if rate is None else numbers([rate])[0]

    def start(self) -> "Recorder":
        """Begin to listen."""
        warm_up()
        self._journal.restart_clock()
        self._running = True
        _started.add(self)
        _torch.listen_to_backward(self._ear)
        reference = weakref.ref(self)

        @_torch.undisturbed
        def foreign(optimizer: Optimizer, args: Any, kwargs: Any) -> None:
            recorder = reference()
            if recorder is not None:
                recorder._stepped_elsewhere(optimizer)

        self._handles += [register_optimizer_step_post_hook(foreign)]
        self._handles += [_torch.hide_from_torchscript(Hook), _torch.notice_scalers()]
        if not self.store.past.facts:
            self._join()
        if self._window.recording:
            self._listen()
        return self

    def close(self, how: str = "ended") -> None:
        """Write what is open, take every hook away and mark the record as ended.

        Args:
            how: What ended the run, for the record's reader.
        """
        if self._running:
            self._running = False
            self._finish(how)
        elif self.fault is not None and not self._ended:
            self._note({"ended": time.time(), "how": how})
        self._ended = True
        self._remove_hooks()
        take_hooks_off((), self._handles)

    def _finish(self, how: str) -> None:
        try:
            if self._window.optimizers:
                self._close_step()
            else:
                self._lost += sum(not math.isfinite(loss) for loss in self._window.losses)
            self._journal.finish()
            if self.step > self.store.past.step:
                self._describe()
            self.store.facts({
                "ended": time.time(),
                "how": how,
                "seconds": self._journal.seconds,
                "spent": self.spent,
                "lost_passes": self._lost,  # whose loss was no number, and which no step followed
            })
        except Exception as error:
            self.fail(error)

    def _remove_hooks(self) -> None:
        _torch.stop_listening_to_backward(self._ear)
        take_hooks_off(self.models, self._leaf_handles)
        self._seat.leave()
        self._set_eager(False)

    def fail(self, error: Exception) -> None:
        """Switch off after a fault of trimtab's own: one warning, and the user's run goes on.

        Args:
            error: What went wrong.

        Raises:
            Exception: It is no fault, but what `on_step` raised to end the run.
        """
        if error is self._end:
            raise error
        if self.fault is None:
            self.fault = error
            self._running = False
            self._remove_hooks()  # but those on optimizers, which may be running them just now
            what = f"{type(error).__name__}: {error}"
            self._note({"fault": what})
            if self.on_fault is not None:
                self.on_fault()
            try:
                warnings.warn(f"trimtab stopped watching: {what}", RuntimeWarning, stacklevel=2)
            except RuntimeWarning as warning:  # the user's program makes errors of warnings
                print(f"{warning}", file=sys.stderr)

    def check_models(self) -> None:
        """Refuse to go on with the record of another model.

        Raises:
            RecordError: It has parameters of other names or shapes.
        """
        before = self.store.past.facts.get("models")
        if before:
            found = sessions.difference(before, self.roster.facts(self._parameters.was_updated)["models"])
            if found:
                raise RecordError(
                    f"cannot resume {self.store.path}: it is the record of another model ({found}); nothing was written to it"
                )

    def _join(self) -> None:
        """The session begins: at once in a new record, at the end of its first step in one that is resumed."""
        self._joined = True
        if self.store.past.facts:
            self.check_models()
            self.store.join()
        else:
            self.store.facts({"name": self.name, "schedule": self.schedule.every, "began": time.time()})
        self.store.facts(sessions.opened(self.store.past))

    def _note(self, facts: dict[str, Any]) -> None:
        """Put facts into the record, if it can be written at all."""
        with contextlib.suppress(Exception):
            self.store.facts(facts)

    # ------------------------------------------------------------------------------------------------ what is watched

    def add_model(self, model: nn.Module, label: str = "") -> WatchedModel:
        """Watch a model from the next forward call on.

        Args:
            model: The model.
            label: What the user calls it.

        Returns:
            The watched model.

        Raises:
            UsageError: It is compiled by TorchScript, which takes no hooks of Python's.
        """
        if isinstance(model, torch.jit.ScriptModule):
            raise UsageError(
                "model must be a Python module, but it is compiled by TorchScript: watch it before torch.jit.script"
            )
        watched = self.roster.watched(model)
        if watched is None:
            watched = self.roster.add_model(self, model, label)
            self._parameters.refresh()
            if self._window.recording and self._running:
                watched.attach_entries()
        return watched

    def add_optimizer(self, optimizer: Optimizer, label: str = "") -> int:
        """Watch an optimizer from its next step on."""
        optimizer = clock.innermost(optimizer)
        index = self.roster.index(optimizer)
        if index is None:
            index = self.roster.add_optimizer(optimizer, label)
            self._handles += clock.attach(self, optimizer)
            self._parameters.meet(optimizer)
        return index

    def log(self, name: str, value: float | Tensor) -> None:
        """Keep a number of the user's for the open step."""
        self._journal.log(self.step, name, value)

    def batch(self, batch: Any) -> None:
        """The training step is about to use this batch: what no model is fed with is a target."""
        if self._running:
            self._close_stepped()
        self._batch = batch
        self._fed.clear()
        self._data.clear()

    def close_without_step(self) -> None:
        """The open step ends though no optimizer has stepped: a look at a model before training."""
        for optimizer in self.roster.optimizers:
            self._parameters.before_step(optimizer, self._window)
        self._window.details["distinct"] = self._parameters.distinct()
        self._close_step()

    # ------------------------------------------------------------------------------------------------ steps

    def _open(self) -> Window:
        recording = self.schedule.records(self.step)
        return Window(self.step, recording, recording and self.schedule.details(self.step))

    def _listen(self) -> None:
        """The step that comes next is to be recorded: put entry hooks on, and let compiled code run eagerly."""
        self._set_eager(True)
        for watched in self.models:
            watched.attach_entries()

    def _set_eager(self, on: bool) -> None:
        _torch.force_eager(on, self._ear)

    def _close_stepped(self) -> None:
        """Close the open step if an optimizer has stepped; of several threads that come at once, one does."""
        if self._window.optimizers:
            with self._closing:
                if self._window.optimizers:
                    self._close_step()
                    self._tell(self.step - 1)

    def _close_step(self) -> None:
        window = self._window
        self._took_turns = window.optimizers
        self._last = None
        if not self._joined:
            self._join()
        take_hooks_off((), self._leaf_handles)
        self._close_up.clear()
        self._owner = None
        self._parameters.forget()
        self._journal.step_ended(window)
        idle = self._have_stepped & ~window.optimizers
        self._have_stepped |= window.optimizers
        if window.recording:
            self._read_targets()
            if idle:
                self._parameters.set_aside(window, self.roster.chosen(window.optimizers), self.roster.chosen(idle))
            self._describe()
            if self._seat.step_ended():
                self.store.facts({"predictions": self._seat.facts})
            if not window.written:  # Ctrl-C came while it was, and somebody goes on
                window.written = True
                self._journal.write(window, self.roster.rates())
            for watched in self.models:
                watched.detach_taps()
        self.step += 1
        self._window = self._open()
        if self._window.recording:
            self._set_eager(True)  # again: the compiler may have come since
        elif window.recording:
            self._set_eager(False)
            for watched in self.models:
                watched.detach_entries()

    def _describe(self) -> None:
        """Write what the models and optimizers are, again whenever something has joined."""
        if (self.roster.changed or self._parameters.changed) and self._parameters.refresh():
            self.roster.changed = self._parameters.changed = False
            self._unseen.changed = True
            self.store.facts(self.roster.facts(self._parameters.was_updated))
        if self._unseen.changed:
            self._unseen.changed = False
            self.store.facts({"unseen": self._unseen.facts(self.models)})

    # ------------------------------------------------------------------------------------------------ forward

    @_timed
    def entered(self, entry: Entry, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """A forward call of an entry module begins: a new scope, if it can train."""
        if not self._running or self._cannot_look(entry):
            return
        module, owner = entry.module(), None if self._owner is None else self._owner()
        if module is None or (entry.name and owner is not None and owner is not module):
            return  # a part of a root whose call is running
        if not torch.is_grad_enabled():
            self._step_aside(self.models[entry.model], entry.name, module)
            return
        self._close_stepped()
        window = self._window
        if not window.recording:
            return
        self._scope += 1
        self._owner = weakref.ref(module)
        self._thread = threading.get_ident()
        window.modes[self._scope] = module.training
        for watched in self.models:
            watched.attach_taps()
        watched = self.models[entry.model]
        if not self._parameters.knows(watched, module):
            window.foreign.add(self._scope)
            self._unseen.note(entry.model, "parameter", unseen.FOREIGN)
        if not entry.name:
            watched.only_root_enters()
            watched.attach_entries()
        if window.detail and watched.index not in window.kept:
            window.kept[watched.index] = dict(batch_statistics.running_statistics(watched))
        if _distributed.is_running():
            self._see_ranks(watched, module)
        self._read_inputs(watched, entry.name, args, kwargs)
        if not entry.name:
            self._seat.begin(watched, module, args, kwargs)

    def _see_ranks(self, watched: WatchedModel, module: nn.Module) -> None:
        """Note how the ranks share out what they compute."""
        window = self._window
        copies, place, halves = watched.shares()
        wrapper = _distributed.active_wrapper(module)
        if wrapper is not None:
            size, at = _distributed.group(wrapper)
            copies, place = copies * size, place * size + at
            window.broadcast = _distributed.sends_buffers(wrapper)
        window.copies, window.place = max(window.copies, copies), max(window.place, place)
        window.halves |= halves

    def call_halt(self, step: int, why: str) -> tuple[int, str]:
        """Let all ranks of a distributed run stop at the same step.

        Args:
            step: The step that has just ended.
            why: In words.

        Returns:
            The step that is the last, this one in a run of one rank, and the reason.
        """
        return self._journal.call_halt(step, why)

    def halt(self) -> tuple[int, str] | None:
        """The step that is to be the last, and why, if the first rank has called a halt."""
        return self._journal.halt()

    def catch_up(self) -> None:
        """Write what is waiting for the other ranks of a distributed run, as far as they have come."""
        with self._closing:
            self._journal.catch_up()

    def _cannot_look(self, entry: Entry) -> bool:
        """Whether nothing can be read of this forward call."""
        if _torch.is_capturing():
            self._unseen.note(entry.model, "step", unseen.CAPTURED)
            for watched in self.models:
                watched.detach_taps()
        elif _torch.functorch_is_active():
            self._unseen.note(entry.model, "output", unseen.TRANSFORMED)
        elif _torch.in_backward():
            self._unseen.note(entry.model, "output", unseen.RECOMPUTED)
        else:
            return _torch.has_no_values()
        return True

    def ended(self, end: End) -> None:
        """A forward call of a root, along which somebody rode, has ended."""
        self._seat.end()

    def _step_aside(self, called: WatchedModel, name: str, module: nn.Module) -> None:
        """An evaluation must run as if nobody watched."""
        for watched in self.models:
            watched.detach_taps()
        if not name:
            called.only_root_enters()
            called.attach_entries()
        if isinstance(module, nn.TransformerEncoderLayer):  # its fused path is off as long as it has any hook
            called.step_aside(module)

    def enter(self, watched: WatchedModel, root: nn.Module, args: tuple[Any, ...]) -> None:
        """A forward call of `root`, a part of a model that was found just now, has begun already."""
        watched.add_entry(root)
        watched.attach_entries()
        entry = watched.entry(root)
        if entry is not None and self._running:
            self.entered(entry, args, {})

    def drop_untrained(self) -> None:
        """Leave models alone none of whose parameters any optimizer trains: teachers, perceptual losses."""
        trained = self.roster.trained()
        for watched in self.models:
            watched.trained |= any(id(p) in trained for _, p, _ in watched.named_parameters())
            self._set_active(watched, watched.trained and not watched.absorbed)

    def absorb_parts(self, whole: WatchedModel) -> None:
        """Leave models alone that turn out to be parts of `whole`: they were called on their own before."""
        model = whole.model
        parts = set() if model is None else {id(module) for module in model.modules()}
        for watched in self.models:
            if watched is not whole and id(watched.model) in parts:
                watched.absorbed = True
                self._set_active(watched, False)

    def _set_active(self, watched: WatchedModel, active: bool) -> None:
        if active == watched.active:
            return
        watched.active = active
        self.roster.changed = True
        if not active:
            watched.detach_taps()
            watched.detach_entries()
        elif self._window.recording and self._running:
            watched.attach_entries()

    def _read_inputs(self, watched: WatchedModel, part: str, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        self._fed.add((args, kwargs))
        self._data.add(
            self._batch if part and self._batch is not None else (args, kwargs)
        )  # a part is fed by others, too
        first = next(tensors((args, kwargs)), None)
        if first is not None and first.ndim and not self._window.batch:
            self._window.batch = first.shape[0]
        prefix = f"{part}:" if part else ""
        named = [(f"{prefix}input[{i}]", value) for i, value in enumerate(args)]
        named += [(f"{prefix}{name}", value) for name, value in kwargs.items()]
        for name, value in named:
            for tensor in measurable(value, 1):
                site = self._sites.index(watched.index, name, "input")
                self._window.forwards.append((self._tape.measure(tensor), site, self._scope))
                if self._window.detail:
                    rows = details.input_channels(tensor, watched)
                    if rows is not None:
                        self._window.channels.append((self._scope, site, rows))

    def _read_targets(self) -> None:
        """Measure the floating tensors of the batch that no model was fed with."""
        targets = self._fed.others(self._batch)
        for i, tensor in enumerate(measurable(self._batch, MAX_OUTPUTS)):
            if id(tensor) in targets and self.models:
                site = self._sites.index(0, f"batch[{i}]", "target")
                self._window.parameters[site] = self._tape.measure(tensor)
        self._batch = None
        self._fed.clear()
        self._data.clear()

    @_timed
    def left(self, tap: Tap, args: tuple[Any, ...], output: Any) -> None:
        """A tapped module has run: measure its output and wait for the gradient."""
        window = self._window
        if not window.recording or not self._running or _torch.has_no_values():
            return
        module = tap.module()
        if module is not None:
            self._seat.left(tap.model, tap.name, module, args, output)
        found = (output,) if type(output) is Tensor else measurable(output, MAX_OUTPUTS)
        if not found or not tap.heard:
            self._hear(tap, found, output)
        for i, tensor in enumerate(found):
            last = self._last
            if last is not None and last[0]() is tensor and last[1] == tensor._version:
                continue  # a container that returns what its last child returned
            if not _distributed.is_copy(tensor):  # of another rank's, which measures the very same
                self._measure_output(tap, args, tensor, i)
        if self._owner is not None and self._owner() is module:
            self._owner = None

    def _measure_output(self, tap: Tap, args: tuple[Any, ...], tensor: Tensor, i: int) -> None:
        """Measure the i-th tensor of what a module gave, and wait for its gradient."""
        window, scope = self._window, self._scope
        while i >= len(tap.sites):  # the one before may have been skipped as a child's
            name = f"{tap.name}[{len(tap.sites)}]" if tap.sites else tap.name
            tap.sites.append((
                self._sites.index(tap.model, name, "output"),
                self._sites.index(tap.model, name, "gradient"),
            ))
        site, gradient_site = tap.sites[i]
        again = _torch.in_backward()  # a checkpointed block runs its forward a second time
        if not again:
            row = self._tape.measure(tensor)
            window.forwards.append((row, site, scope))
            if row < 0:
                self._unseen.nothing_to_read(tap.model, tap.name, tensor)
        if tensor.requires_grad:
            handle = tensor.register_hook(gradient_hook(weakref.ref(self), gradient_site, scope))  # type: ignore[no-untyped-call]
            if tensor.is_leaf:  # a parameter, or the user's own input: it outlives the step
                self._leaf_handles.append(handle)
        if window.detail and not again and i == 0:
            self._close_up.look(window, scope, tap, args, tensor, site, self._data)
        self._last = weakref.ref(tensor), tensor._version  # to hold it would cost the user's step a fresh allocation

    def _hear(self, tap: Tap, found: Sequence[Tensor], output: Any) -> None:
        """A module is called for the first time, or gives nothing to read."""
        if not tap.heard:
            tap.heard = True
            self._unseen.called(tap.model, tap.name)
        if not found:
            self._unseen.nothing_to_read(tap.model, tap.name, output)

    # ------------------------------------------------------------------------------------------------ backward

    @_timed
    def before_backward(self, losses: tuple[Tensor, ...]) -> None:
        """A backward pass begins."""
        if not self._running or self._elsewhere() or _torch.is_capturing():
            return
        try:
            if not self._window.closure:
                self._close_stepped()
            window = self._window
            if window.recording:
                self._clearing.look()
            if window.passes > window.first_pass and self._parameters.thrown_away(window):
                self._lost += sum(not math.isfinite(loss) for loss in window.losses)
                window.forget_passes()
            window.begin_pass()
            self._parameters.mark()
            self._pass += 1
            self._active, self._stepped = True, False
            self._keep_loss(losses)
            if window.detail and window.passes == window.first_pass + 1 and losses:
                origins = self._close_up.answers(losses[0], window.links)
                window.details["loss"] = loss_facts(losses[0], origins) | {"broadcasts": broadcasts(losses[0], origins)}
                window.details["attention"] = attentions(losses[0], origins)
        except Exception as error:  # never into the user's backward pass
            self.fail(error)

    def _elsewhere(self) -> bool:
        """Whether this is another thread than the one that last called or stepped what is watched."""
        return self._thread not in (0, threading.get_ident())

    def _keep_loss(self, losses: tuple[Tensor, ...]) -> None:
        if len(losses) == 1 and losses[0].numel() == 1 and not losses[0].is_meta:
            value, scale = losses[0].detach(), loss_scale(losses[0])
            self._window.keep_scale(self._pass, scale)
            if scale is not None:
                value = value / scale
            self._window.losses.append(float(value) if value.device.type == "cpu" else value.clone())

    @_timed
    def arrived(self, site: int, scope: int, grad: Tensor) -> None:
        """The gradient at a site has been computed; it counts when the pass deposits into `.grad`."""
        if self._active and self._window.recording and self._running and not _distributed.is_sum_pending(grad):
            self._window.gradients.append((self._tape.measure(grad), site, self._pass))
            self._window.reached.add(scope)

    @_timed
    def after_backward(self) -> None:
        """A backward pass has ended: the gradients are summed over ranks and not yet clipped."""
        if not self._active or self._elsewhere():
            return
        self._active = False
        self._last = None
        try:
            self._seat.backward_ended()
            deposited = self._parameters.read_raw(self._window)
            if not deposited and self._window.foreign & self._window.reached:
                for watched in self.models:
                    self._unseen.note(watched.index, "gradient", unseen.FOREIGN)
            self._window.end_pass(
                deposited or self._stepped
            )  # an optimizer that steps inside the pass leaves nothing behind
        except Exception as error:  # never into the user's backward pass
            self.fail(error)

    # ------------------------------------------------------------------------------------------------ optimizer

    def closure_begins(self, optimizer: Optimizer) -> None:
        """The optimizer runs a closure: its passes belong to this step."""
        if not self._running or _torch.is_capturing():
            return
        self._close_stepped()
        self._window.begin_closure()
        self._parameters.forget()

    def closure_failed(self) -> None:
        """The closure has raised: the step did not come about."""
        self._window.end_closure()

    @_timed
    def before_step(self, optimizer: Optimizer) -> None:
        """The gradients are as the optimizer will use them, the parameters as the forward call used them."""
        if not self._running or _torch.is_capturing():
            return
        index = self.add_optimizer(optimizer)
        if index < LAST_BIT and self._window.optimizers >> index & 1 and not self._window.closure:
            self._close_stepped()  # gradients that came by no backward pass: by vmap, or by hand
        window = self._window
        self._stepped = True
        self._thread = threading.get_ident()
        window.rates[index] = rates(
            optimizer, None if window.recording else 1
        )  # a scheduler steps before the window closes
        if window.recording:
            if self._clearing.uncleared(index) and index not in window.uncleared:
                window.uncleared.append(index)
            self._parameters.before_step(optimizer, window)

    def after_step(self, optimizer: Optimizer) -> None:
        """The parameters have been updated: the step is done, unless another optimizer follows at once."""
        if not self._running or _torch.is_capturing():
            return
        self._finish_step(optimizer)
        stepped = self._window.optimizers
        if len(self.roster.optimizers) == 1 or self._took_turns == stepped:
            self._tell(self.step)

    def _tell(self, step: int) -> None:
        if self.on_step is not None and step > self._told:
            self._told = step
            try:
                self.on_step(step)
            except Exception as error:
                self._end = error
                raise

    @_timed
    def _finish_step(self, optimizer: Optimizer) -> None:
        index = self.add_optimizer(optimizer)
        window = self._window
        window.optimizers |= 1 << min(index, LAST_BIT)
        if window.recording:
            self._parameters.after_step(optimizer, window)
            if window.detail:
                window.details["distinct"] = self._parameters.distinct()
            for watched in self.models:
                watched.detach_taps()
        if not self.schedule.records(
            self.step + 1
        ):  # now: inside the next forward call it would be too late for that call
            self._set_eager(False)
            for watched in self.models:
                watched.detach_entries()
        elif not window.recording:
            self._listen()
        self._clearing.remember(index, optimizer)
        window.end_closure()

    def _stepped_elsewhere(self, optimizer: Optimizer) -> None:
        """An optimizer that nobody watches has stepped: the passes before it were its own."""
        if self._window.optimizers or not self._running or self._elsewhere() or _torch.is_capturing():
            return
        if self.roster.index(optimizer) is None:
            self._window.forget_passes()
