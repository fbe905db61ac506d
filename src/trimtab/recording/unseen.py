"""What could not be seen of a run, and why: it is said in the record, never guessed.

While a run is recorded, `Sightings` notes which modules were called at recorded steps and what kept others from being read. `unseen`
puts that beside the readings: what has some is seen, whatever else befell it.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypeAlias

import numpy as np
from torch import nn

from trimtab._torch import is_compiled
from trimtab.recording.facts import scripted_modules
from trimtab.recording.walk import tensors

if TYPE_CHECKING:
    from trimtab.recording.record import Record
    from trimtab.recording.watched import WatchedModel

What: TypeAlias = Literal["output", "gradient", "parameter", "step"]
"""What of a module was not seen; "step": the training steps themselves."""

NEVER_CALLED = "never called"
BYPASSED = "not called as a module, though its weights are used"
ATTENTION = "MultiheadAttention uses its weights without calling it"
SCRIPTED = "compiled by TorchScript, which takes no hooks"
COMPILED = "ran as compiled code, which calls no hooks"
TRANSFORMED = "called inside vmap, grad or jvp of torch.func, whose tensors are wrapped"
FOREIGN = "functional_call ran it with weights that are not its own"
CAPTURED = "captured into a CUDA graph, whose replays run no Python"
RECOMPUTED = "run without gradients, and again inside the backward pass, by a checkpoint around all of it"
UNTRAINED = "no backward pass that leaves gradients in parameters reached its calls"
NO_TENSOR = "gives no tensor"
NOT_FLOATING = "gives no floating-point tensor"
QUANTIZED = "gives a quantized tensor"
META = "gives a tensor on the meta device, which has no values"
UNREADABLE = "gives a tensor that has no values to read"

CONTAINERS = (nn.ModuleList, nn.ModuleDict, nn.ParameterList, nn.ParameterDict)
"""Modules that nobody calls."""


SHOWN_BY: dict[What, str] = {"gradient": "gradient", "parameter": "parameter-gradient", "step": ""}
"""Kind of reading by which a model shows that it was seen all the same."""


@dataclass(frozen=True, slots=True)
class Unseen:
    """A place that could not be seen at any recorded step.

    Attributes:
        model: Index of the model.
        name: Name of the module; "" for the whole model.
        what: What of it was not seen.
        reason: Why not.
    """

    model: int
    name: str
    what: What
    reason: str


class Sightings:
    """What a recorder has met at its recorded steps.

    Attributes:
        changed: Whether something new has been noted since somebody last set it to False.
    """

    def __init__(self) -> None:
        self._called: set[tuple[int, str]] = set()
        self._modules: dict[int, dict[str, str]] = {}
        self._whole: dict[int, dict[What, str]] = {}
        self._told: dict[str, Any] = {}
        self.changed = True

    def called(self, model: int, name: str) -> None:
        """A module has been called."""
        self._called.add((model, name))
        self.changed = True

    def note(self, model: int, what: What, reason: str) -> None:
        """Something of a whole model is not seen; the first reason stands."""
        reasons = self._whole.setdefault(model, {})
        if what not in reasons:
            reasons[what] = reason
            self.changed = True

    def nothing_to_read(self, model: int, name: str, output: Any) -> None:
        """A module has given an output without a number to read; the first reason stands."""
        reasons = self._modules.setdefault(model, {})
        if name not in reasons:
            reasons[name] = _why(output)
            self.changed = True

    def facts(self, models: "list[WatchedModel]") -> dict[str, Any]:
        """What has been noted, as plain data.

        Args:
            models: The watched models.

        Returns:
            By the index of each model (of one that the user has let go of, what was last known): "silent", modules that were never called, with what is known of why; "modules", those
            whose output could not be read, with why; "whole", reasons for all of it; whether anything was "called"; and whether
            any of it is "compiled".
        """
        for watched in models:
            index, model = watched.index, watched.model
            if model is not None:
                called = {name for other, name in self._called if other == index}
                expected = {name: reason for name, reason in _expected(watched) if name not in called}
                self._told[str(index)] = {
                    "silent": expected | dict.fromkeys(scripted_modules(model), SCRIPTED),
                    "modules": self._modules.get(index, {}),
                    "whole": self._whole.get(index, {}),
                    "called": bool(called),
                    "compiled": is_compiled(model),
                }
        return self._told


def _why(output: Any) -> str:
    """Why nothing of an output can be read."""
    found = list(tensors(output))
    if not found:
        return NO_TENSOR
    if any(tensor.is_quantized for tensor in found):
        return QUANTIZED
    if not any(tensor.is_floating_point() or tensor.is_complex() for tensor in found):
        return NOT_FLOATING
    return META if any(tensor.is_meta for tensor in found) else UNREADABLE


def _expected(watched: "WatchedModel") -> Iterator[tuple[str, str]]:
    """Modules that somebody should call, with what is known of why nobody does."""
    attention: list[str] = []
    for name, module in watched.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            attention.append(f"{name}." if name else "")
        leaf = next(module.children(), None) is None
        if (leaf or next(module.parameters(recurse=False), None) is not None) and not isinstance(module, CONTAINERS):
            inside = any(name.startswith(prefix) and name != prefix[:-1] for prefix in attention)
            yield name, ATTENTION if inside else ""


def unseen(record: "Record") -> list[Unseen]:
    """What of a record's models could not be seen at any recorded step.

    Args:
        record: A record; of one that holds no step in full nothing is said, since nobody has looked.

    Returns:
        The places, those of each model together. A model of which nothing was seen, or whose steps, is one place.
    """
    noted: dict[str, Any] = record.facts.get("unseen", {}) if len(record.steps) else {}
    read = np.any((record.readings[:, :, 0] > 0) | (record.readings[:, :, 6] > 0), axis=0).tolist()
    seen = {(site.model, site.kind, site.name) for site in record.sites if read[site.index]}
    found: list[Unseen] = []
    for key, notes in noted.items():
        model, known = int(key), record.models[int(key)]
        parameters, whole = known["parameters"], notes["whole"]
        trained = any(facts["optimized"] for facts in parameters.values())
        if not known.get("active", True) or not (whole or trained):
            continue  # nobody trains it
        outputs = {name for other, kind, name in seen if (other, kind) == (model, "output")}
        if not outputs:
            found.append(Unseen(model, "", "output", _of_all(notes)))
        else:
            used = {facts["owner"] for name, facts in parameters.items() if (model, "raw-gradient", name) in seen}
            for name, reason in notes["silent"].items():
                default = BYPASSED if name in used else NEVER_CALLED
                found.append(Unseen(model, name, "output", reason or default))
            found += [Unseen(model, name, "output", reason) for name, reason in notes["modules"].items()]
            found = [place for place in found if place.model != model or place.name not in outputs]
        kinds = {kind for other, kind, _ in seen if other == model}
        for what, kind in SHOWN_BY.items():
            if what in whole and kind not in kinds:
                found.append(Unseen(model, "", what, whole[what]))
    return found


def _of_all(notes: dict[str, Any]) -> str:
    """Why nothing of a model was seen."""
    reasons = set(notes["modules"].values())
    for what in ("output", "gradient"):
        if what in notes["whole"]:
            return str(notes["whole"][what])
    if len(reasons) == 1:
        return str(reasons.pop())
    if notes["called"]:
        return UNTRAINED
    return COMPILED if notes["compiled"] else NEVER_CALLED
