"""Least squares per channel over a stream: y close to a z + b."""

from dataclasses import dataclass

import torch
from torch import Tensor

from trimtab.errors import NormalizationError

_CONSTANT = 1e-12  # of the second moment: a variance below is the rounding of a constant, and has no slope


@dataclass(slots=True)
class ChannelFit:
    """Sums of z and y for each channel, centred and merged in float64.

    Attributes:
        count: Values per channel.
        z: Mean of z; empty before the first call.
        y: Mean of y.
        zz: Sum of squared deviations of z.
        zy: Sum of products of the deviations.
    """

    count: int = 0
    z: Tensor | None = None
    y: Tensor | None = None
    zz: Tensor | None = None
    zy: Tensor | None = None

    def add(self, z: Tensor, y: Tensor, axis: int) -> None:
        """Take in one batch.

        Args:
            z: What is to be scaled and shifted.
            y: What it should become, of the same shape.
            axis: The channel axis.
        """
        zs, ys = _rows(z, axis), _rows(y, axis)
        n = zs.shape[1]
        if not n:
            return
        z_mean, y_mean = zs.mean(1), ys.mean(1)
        zs, ys = zs - z_mean[:, None], ys - y_mean[:, None]
        zz, zy = zs.square().sum(1), (zs * ys).sum(1)
        if self.z is None or self.y is None or self.zz is None or self.zy is None:
            self.count, self.z, self.y, self.zz, self.zy = n, z_mean, y_mean, zz, zy
            return
        total = self.count + n
        dz, dy = z_mean - self.z, y_mean - self.y
        cross = self.count * n / total
        self.zz, self.zy = self.zz + zz + dz * dz * cross, self.zy + zy + dz * dy * cross
        self.z, self.y = self.z + dz * (n / total), self.y + dy * (n / total)
        self.count = total

    def solve(self, weight: Tensor, with_bias: bool = True) -> tuple[Tensor, Tensor]:
        """The best scale and shift.

        Args:
            weight: The scale of channels in which z is constant, float64 of shape (C,).
            with_bias: Whether there is a shift; without, the line goes through the origin.

        Returns:
            Scale and shift, float64 of shape (C,).

        Raises:
            NormalizationError: If a value of z or y is not finite.
        """
        assert self.z is not None
        assert self.y is not None
        assert self.zz is not None
        assert self.zy is not None
        if not bool((self.zz + self.zy + self.y).isfinite().all()):
            raise NormalizationError(
                "batches give a normalization values that are not finite, so that nothing can be fitted to them"
            )
        if not with_bias:
            square = self.zz + self.count * self.z.square()
            product = self.zy + self.count * self.z * self.y
            scale = torch.where(square > 0, product / square, weight.to(square))
            return scale, torch.zeros_like(scale)
        moves = self.zz > _CONSTANT * self.count * self.z.square()
        scale = torch.where(moves, self.zy / self.zz, weight.to(self.zz))
        return scale, self.y - scale * self.z


def _rows(x: Tensor, axis: int) -> Tensor:
    return x.detach().movedim(axis, 0).flatten(1).double()
