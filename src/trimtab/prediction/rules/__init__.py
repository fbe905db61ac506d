"""One file for each family of operations; importing the package registers them."""

from trimtab.prediction.rules import (
    contractions,
    convolutions,
    lookups,
    maps,
    masking,
    norms,
    order,
    parts,
    pooling,
    reductions,
    softmax,
    views,
)

__all__ = [
    "contractions",
    "convolutions",
    "lookups",
    "maps",
    "masking",
    "norms",
    "order",
    "parts",
    "pooling",
    "reductions",
    "softmax",
    "views",
]
