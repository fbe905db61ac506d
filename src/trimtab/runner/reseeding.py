"""Run a script on other random numbers than its own, without changing it."""

import functools
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import torch


def vary_seeds(offset: int) -> None:
    """From now on every seed that the process sets is so much higher, and what is never seeded begins at `offset`.

    With 0, a script that seeds itself runs as it always does. A `torch.Generator` of the script's own keeps its seed.

    Args:
        offset: Added to each seed.
    """
    torch.manual_seed(offset)
    np.random.seed(offset)
    random.seed(offset)
    torch.manual_seed = torch.random.manual_seed = _raised(torch.manual_seed, offset)
    np.random.seed = _raised(np.random.seed, offset)
    np.random.default_rng = _raised(np.random.default_rng, offset)
    random.seed = _raised(random.seed, offset)


def _raised(function: Callable[..., Any], offset: int) -> Any:
    @functools.wraps(function)
    def seeded(seed: Any = None, *args: Any, **kwargs: Any) -> Any:
        if seed is None:
            seed = offset
        elif isinstance(seed, (int, np.integer)):
            seed = int(seed) + offset
        return function(seed, *args, **kwargs)

    return seeded
