"""What is measured: trimtab in its modes, and what a user would take instead, each called as its own manual says."""

import contextlib
import importlib.util
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn
from torch.optim import Optimizer


class Monitor:
    """What a training loop has to call of a monitor; the base class is none at all."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        self.model = model

    def after_backward(self, loss: Tensor) -> None: ...

    def after_step(self, step: int, loss: Tensor) -> None: ...

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        """While another model of the process is trained, unwatched: whatever the monitor hooks globally is off."""
        yield


class Reading(Monitor):
    """The floor: `torch.sum` of every output, gradient and parameter that trimtab measures, and nothing kept."""

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        super().__init__(model, optimizer, folder)
        for module in model.modules():
            module.register_forward_hook(self.left)

    def left(self, module: nn.Module, args: object, output: object) -> None:
        if isinstance(output, Tensor):
            output.detach().sum()
            if output.requires_grad:
                output.register_hook(self.arrived)

    def arrived(self, grad: Tensor) -> None:
        grad.sum()

    def after_backward(self, loss: Tensor) -> None:
        for parameter in self.model.parameters():
            parameter.detach().sum()
            if parameter.grad is not None:
                parameter.grad.sum()


class Trimtab(Monitor):
    every: int | None = None

    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        import trimtab

        self.watch = trimtab.watch(model, optimizer, every=self.every, store=folder / "record.db")

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        from trimtab import _torch

        listeners = _torch._listeners
        for listener in listeners:
            _torch.stop_listening_to_backward(listener)
        yield
        for listener in listeners:
            _torch.listen_to_backward(listener)

    def readings(self) -> int:
        """Sites that the last recorded step has measured."""
        return int((self.watch.record.readings[-1, :, 0] > 0).sum())


class EveryStep(Trimtab):
    every = 1


class EveryStepWithoutNumba(EveryStep):
    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        os.environ["TRIMTAB_NO_NUMBA"] = "1"
        super().__init__(model, optimizer, folder)


class Torchmortem(Monitor):
    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from torchmortem import Autopsy

        self.autopsy = Autopsy(model, optimizer=optimizer)
        self.autopsy.attach()

    def after_step(self, step: int, loss: Tensor) -> None:
        self.autopsy.step(loss=loss.item())


class Ormas(Monitor):
    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from ormas_monitor import Monitor as OrmasMonitor

        self.monitor = OrmasMonitor(
            model, optimizer, out=str(folder / "ormas"), check_every=1, verbose=False, repair=False
        )

    def after_backward(self, loss: Tensor) -> None:
        self.monitor.step(loss)


class Wandb(Monitor):
    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        import wandb

        os.environ |= {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off"}
        self.run = wandb.init(mode="offline", dir=folder, project="cost")
        self.run.watch(model, log="all", log_freq=1)

    def after_step(self, step: int, loss: Tensor) -> None:
        self.run.log({"loss": loss.item()})


class TensorBoard(Monitor):
    def __init__(self, model: nn.Module, optimizer: Optimizer, folder: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        super().__init__(model, optimizer, folder)
        self.writer = SummaryWriter(folder / "tensorboard")

    def after_step(self, step: int, loss: Tensor) -> None:
        self.writer.add_scalar("loss", loss.item(), step)
        for name, parameter in self.model.named_parameters():
            self.writer.add_histogram(f"weights/{name}", parameter.detach(), step)
            if parameter.grad is not None:
                self.writer.add_histogram(f"gradients/{name}", parameter.grad, step)


@dataclass(frozen=True)
class Rival:
    """A monitor with what it takes.

    Attributes:
        attach: Puts it on a model.
        package: The distribution it comes from, for its version.
        module: The module that must be there.
        measures: What it looks at in one step.
    """

    attach: Callable[[nn.Module, Optimizer, Path], Monitor]
    package: str
    module: str
    measures: str

    @property
    def installed(self) -> bool:
        return importlib.util.find_spec(self.module) is not None


FLOOR = {
    "no monitor": Rival(Monitor, "torch", "torch", "nothing: what the twins differ by"),
    "torch.sum in hooks": Rival(Reading, "torch", "torch", "one number of each output, gradient, parameter"),
}
ALL = "7 statistics of each output, gradient, parameter, update"
TRIMTAB = {
    "trimtab, every step": Rival(EveryStep, "trimtab", "numba", ALL),
    "trimtab, every step, without numba": Rival(EveryStepWithoutNumba, "trimtab", "trimtab", ALL),
    "trimtab, default schedule": Rival(Trimtab, "trimtab", "numba", "the same, every 50th step in the long run"),
}
PEERS = {
    "torchmortem": Rival(Torchmortem, "torchmortem", "torchmortem", "its default collectors; outputs and gradients"),
    "ormas-monitor": Rival(Ormas, "ormas-monitor", "ormas_monitor", "check_every=1; few statistics, of gradients"),
    "wandb.watch": Rival(
        Wandb, "wandb", "wandb", 'log="all", log_freq=1, offline; histograms of parameters, gradients'
    ),
    "TensorBoard": Rival(TensorBoard, "tensorboard", "tensorboard", "add_histogram of parameters and gradients"),
}
