"""A change of a script as code to paste into it: with the script's own names, and where it goes."""

import ast
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from textwrap import indent

import torch

from trimtab._unchanged import unchanged
from trimtab.errors import RepairError
from trimtab.repairs.change import Change
from trimtab.report import Repair
from trimtab.runner.injection import Held, seed_all

WITHOUT_THE_LOOP: dict[str, Callable[..., str]] = {
    "zero-grad": lambda: (
        "optimizer.register_step_post_hook(lambda optimizer, *_: optimizer.zero_grad())  "
        "# or call optimizer.zero_grad() before each loss.backward()"
    ),
    "add-parameters": lambda: (
        'held = {id(p) for group in optimizer.param_groups for p in group["params"]}\n'
        'optimizer.add_param_group({"params": [p for p in model.parameters() if p.requires_grad and id(p) not in held]})'
    ),
    "clip": lambda bound: (
        "def clip(optimizer, *_):  # or call clip_grad_norm_ between loss.backward() and optimizer.step()\n"
        f'    torch.nn.utils.clip_grad_norm_([p for group in optimizer.param_groups for p in group["params"]], {bound:g})\n'
        "optimizer.register_step_pre_hook(clip)"
    ),
    "warm-up": lambda share: (
        f"warmup = max(int({share:g} * steps), 1)\n"
        "warm_up = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min((step + 1) / warmup, 1.0))\n"
        "optimizer.register_step_post_hook(lambda *_: warm_up.step())"
    ),
}
"""Changes whose own code belongs into the loop, told so that one place in the script is enough."""

IMPORTS = {
    "torch": "import torch",
    "nn": "from torch import nn",
    "F": "from torch.nn import functional as F",
    "math": "import math",
    "np": "import numpy as np",
    "trimtab": "import trimtab",
}


@dataclass(frozen=True)
class Paste:
    """How changes are told to a script's author.

    Attributes:
        held: What the script held at its first training pass.
        file: The file in which it makes its optimizer.
        first_pass: Line of the first training pass, 0 where it is not known.
        steps: Training steps of a run.
    """

    held: Held
    file: str
    first_pass: int
    steps: int

    def told(self, repair: Repair, changes: Sequence[Change]) -> Repair:
        """The repair with code for this script.

        Args:
            repair: As its family tells it, for a `model` and an `optimizer`.
            changes: What it is made of.

        Returns:
            The same repair, to be pasted.
        """
        code = "\n".join(part for part in map(_code, changes) if part)
        if not code:
            return repair
        used = _names(code)
        if self._draws(changes):
            code = (
                "with torch.random.fork_rng():  # draws what the trial has drawn; leave these two lines out to draw anew\n"
                f"    torch.manual_seed(0)\n{indent(code, '    ')}"
            )
            used.add("torch")
        head = [IMPORTS[name] for name in IMPORTS if name in used]
        if "steps" in used:
            head.append(f"steps = {self.steps}  # of the trials: put the steps of your run here")
        code, named = self._renamed(code, used)
        line = _last_assignment(self.file, named)
        before = f", before the first training pass (line {self.first_pass})" if self.first_pass else ""
        place = f"below line {line}" if line else f"where the optimizer has been made{before}"
        return replace(repair, code="\n".join([f"# {os.path.relpath(self.file)}, {place}:", *head, code]))

    def _renamed(self, code: str, used: set[str]) -> tuple[str, set[str]]:
        """The code with the script's names, and the variables that must be there before it."""
        held, named = self.held, set()
        if "model" in used:
            if held.labels:
                inside = ", ".join(f'"{label}": {label}' for label in held.labels)
                code = f"model = torch.nn.ModuleDict({{{inside}}})\n{code}"
                named |= set(held.labels)
            else:
                code = _rename(code, "model", ".".join(part for part in (held.label, held.prefix) if part))
                named.add(held.label)
        labels = [label for label in held.optimizer_labels if label]
        if "optimizer" in used and labels:
            named |= set(labels)
            if len(labels) == 1:
                code = _rename(code, "optimizer", labels[0])
            else:
                code = f"for optimizer in ({', '.join(labels)}):\n{indent(code, '    ')}"
        elif "optimizer" in used:
            named.add("optimizer")  # a framework holds it: perhaps it was called so where it was made
        return code, named

    def _draws(self, changes: Iterable[Change]) -> bool:
        """Whether random numbers go into it."""
        with unchanged():
            seed_all(0)
            before = torch.get_rng_state()
            try:
                setup = self.held.setup(self.steps)
                for change in changes:
                    change.apply(setup)
            except RepairError:
                return False
            return not torch.equal(before, torch.get_rng_state())


def _code(change: Change) -> str:
    written = WITHOUT_THE_LOOP.get(change.kind)
    return change.describe().code if written is None else written(**change.settings)


def _names(code: str) -> set[str]:
    try:
        return {node.id for node in ast.walk(ast.parse(code)) if isinstance(node, ast.Name)}
    except SyntaxError:
        return {name for name in (*IMPORTS, "model", "optimizer") if re.search(rf"\b{name}\b", code)}


def _rename(code: str, name: str, new: str) -> str:
    return re.sub(rf"(?<![\w.\"']){name}(?![\w\"'])(?!\s*=[^=])", new, code)


def _last_assignment(file: str, names: set[str]) -> int:
    """The last line of the last statement that gives one of these names a value; 0 where none does."""
    try:
        with open(file, "rb") as opened:
            tree = ast.parse(opened.read())
    except (OSError, SyntaxError, ValueError):
        return 0
    lines = [0]
    for node in ast.walk(tree):
        targets = (
            node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) else []
        )
        given = {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if given & names:
            lines.append(getattr(node, "end_lineno", 0))
    return max(lines)
