"""Where people already work: Lightning, Transformers and accelerate; TensorBoard, Weights & Biases and MLflow.

One module a library, which loads when it is first used::

    from trimtab.integrations.lightning import TrimtabCallback

    trainer = lightning.Trainer(callbacks=[TrimtabCallback()])
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trimtab.integrations import accelerate as accelerate
    from trimtab.integrations import lightning as lightning
    from trimtab.integrations import mlflow as mlflow
    from trimtab.integrations import series as series
    from trimtab.integrations import tensorboard as tensorboard
    from trimtab.integrations import transformers as transformers
    from trimtab.integrations import wandb as wandb

__all__ = ["accelerate", "lightning", "mlflow", "series", "tensorboard", "transformers", "wandb"]


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'trimtab.integrations' has no attribute {name!r}")
    return import_module(f"trimtab.integrations.{name}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
