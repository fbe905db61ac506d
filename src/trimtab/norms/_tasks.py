"""The tasks that `recommend` knows, and what a model shows of its task."""

from collections import Counter
from typing import Any

from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._arguments import refuse

FAMILIES = {
    "image-classification": "convolutional",
    "convolutional": "convolutional",
    "detection": "detection",
    "segmentation": "convolutional",
    "medical-segmentation": "medical",
    "style-transfer": "style",
    "gan-generator": "generator",
    "gan-critic": "critic",
    "diffusion": "diffusion",
    "language-model": "language-model",
    "transformer": "transformer",
    "text-encoder": "transformer",
    "translation": "transformer",
    "speech": "transformer",
    "vision-transformer": "vision-transformer",
    "recurrent": "recurrent",
    "tabular": "dense",
    "private-training": "private",
}
_OF_THE_NOTE = {  # names of a selection guide in circulation, with the batch sizes that they mean
    "image-classification-large-batch": ("image-classification", 64),
    "image-classification-small-batch": ("image-classification", 4),
    "transformer-language": ("language-model", None),
    "gan": ("gan-critic", None),
}


def known_task(task: Any) -> tuple[str, int | None]:
    """The task by its proper name.

    Args:
        task: A name, with hyphens, underscores or blanks.

    Returns:
        The name, and the batch size that an older name of it means.

    Raises:
        NormalizationError: If there is no such task.
    """
    if not isinstance(task, str):
        hint = ", or a model: make one of the class" if isinstance(task, type) else ", or a model"
        refuse("task", task, f"a word is needed, one of {', '.join(FAMILIES)}{hint}")
    plain = task.strip().lower().replace("_", "-").replace(" ", "-")
    if plain in FAMILIES:
        return plain, None
    if plain in _OF_THE_NOTE:
        return _OF_THE_NOTE[plain]
    raise NormalizationError(f"task is {task!r}; known are {', '.join(FAMILIES)}")


def task_of(model: nn.Module) -> tuple[str, str]:
    """The task as far as a model's layers show it.

    Args:
        model: The model.

    Returns:
        The task, and the layers that it was read off.

    Raises:
        NormalizationError: If it has none of the layers that tell.
    """
    counts: Counter[str] = Counter()
    for module in model.modules():
        counts["recurrent"] += isinstance(module, nn.RNNBase)
        counts["attention"] += "attention" in type(module).__name__.lower()
        counts["image convolution"] += isinstance(module, (nn.Conv2d, nn.Conv3d))
        counts["convolution"] += isinstance(module, (nn.Conv1d, nn.Conv2d, nn.Conv3d))
        counts["embedding"] += isinstance(module, nn.Embedding)
        counts["linear"] += isinstance(module, nn.Linear)
    if counts["recurrent"]:
        return "recurrent", f"{counts['recurrent']} recurrent layers"
    if counts["attention"]:
        images = counts["image convolution"] and not counts["embedding"]
        return "vision-transformer" if images else "transformer", f"{counts['attention']} attention layers"
    if counts["convolution"]:
        return "convolutional", f"{counts['convolution']} convolutions"
    if counts["linear"]:
        return "tabular", f"{counts['linear']} linear layers and no others with weights"
    raise NormalizationError(
        f"{type(model).__name__} has neither convolutions, attention, recurrent nor linear layers to read a task off; "
        f"give one of {', '.join(FAMILIES)}"
    )
