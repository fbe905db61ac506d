"""The methods of a `Standardizer` that write it into a network."""

from collections.abc import Iterable
from typing import Any

from torch import nn

from trimtab.norms.standardizer._fitted import Fitted
from trimtab.norms.standardizer.folding import fold_affine
from trimtab.norms.standardizer.targets import fold_targets


class Foldable(Fitted):
    """Folding of inputs and targets."""

    feature_dim: int

    def fold_into(
        self, model: nn.Module, example: Any = None, *, layers: Iterable[str] | None = None, padding: str = "map"
    ) -> nn.Module:
        """A copy of a model that takes raw inputs, where the model takes standardized ones.

        Its first layer gets the original-space parameters w = w' / s, b = b' - w' mean / s. See `folding.fold_affine`, which does
        it, for the layers that can take it, the padding of convolutions, and the check.

        Args:
            model: Takes `transform`ed inputs. It is not changed.
            example: A batch of raw inputs, to check the whole model on and to find its first layers; not needed for a layer or an
                `nn.Sequential` that begins with one.
            layers: Names of the modules that read the input, as in `named_modules`; found by themselves where that is possible.
            padding: For zero padding: "map" adds a bias map, "mean" pads the raw image with the mean.

        Returns:
            The copy; its attribute `fold_report` holds the measured difference, max |f(standardized) - g(raw)|.

        Raises:
            NotFittedError: If nothing was seen yet.
            FoldError: If the result would not be exact; the message says why.
        """
        return fold_affine(
            model, *self._affine(), example, layers=layers, padding=padding, feature_dim=self.feature_dim
        )

    def unfold(
        self, model: nn.Module, example: Any = None, *, layers: Iterable[str] | None = None, padding: str = "map"
    ) -> nn.Module:
        """A copy of a model that takes standardized inputs, where the model takes raw ones: w' = w s, b' = b + w mean.

        Args:
            model: Takes raw inputs. It is not changed.
            example: A batch of raw inputs, as in `fold_into`.
            layers: As in `fold_into`.
            padding: As in `fold_into`.

        Returns:
            The copy; its attribute `fold_report` holds the measured difference, max |f(raw) - g(standardized)|.

        Raises:
            NotFittedError: If nothing was seen yet.
            FoldError: If the result would not be exact; the message says why.
        """
        return fold_affine(
            model, *self._affine(), example, layers=layers, padding=padding, feature_dim=self.feature_dim, inverse=True
        )

    def fold_targets_into(self, model: nn.Module, example: Any = None, *, layer: str | None = None) -> nn.Module:
        """A copy of a model that predicts in original units, where the model predicts targets that this standardized: y = s y' + mean.

        Args:
            model: Predicts standardized targets. It is not changed.
            example: A batch of the model's inputs, to check the whole model on.
            layer: Name of the last layer; found by itself in a layer or an `nn.Sequential`.

        Returns:
            The copy; its attribute `fold_report` holds the measured difference.

        Raises:
            NotFittedError: If nothing was seen yet.
            FoldError: If the result would not be exact; the message says why.
        """
        return fold_targets(model, *self._affine(), example, layer=layer)
