"""One file for each family of operations; importing the package registers them."""

from trimtab.prediction.rules import contractions, convolutions, masking, norms, pooling, reductions, softmax, views

__all__ = ["contractions", "convolutions", "masking", "norms", "pooling", "reductions", "softmax", "views"]
