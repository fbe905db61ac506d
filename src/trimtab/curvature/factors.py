"""The loss's second derivative at each sample's output, as a sum of outer products: M_n = sum_c sign_nc s_nc s_nc'."""

import torch
from torch import Tensor

from trimtab.curvature._checks import CurvatureError
from trimtab.curvature.outputs import Outputs

WIDEST = 512
"""Entries of a sample's output up to which the loss's second derivative there is factored: C x C numbers a sample."""


class Factors:
    """s_nc with M_n = sum_c sign_nc s_nc s_nc'.

    Args:
        blocks: M_n, (N, C, C), symmetric, in float64.
        shape: Of the outputs.
        rounding: Of the entries, relative to the largest of all.
    """

    def __init__(self, blocks: Tensor, shape: torch.Size, rounding: float) -> None:
        floors = (rounding * blocks.abs().max()).expand(len(blocks))
        self._parts = _cholesky(blocks, floors) or _eigen(blocks, floors)
        self._shape = shape

    def columns(self, dtype: torch.dtype) -> list[tuple[float, Tensor]]:
        """Sign, and one s_nc of every sample at once."""
        return [(sign, s[:, :, c].to(dtype).view(self._shape)) for sign, s in self._parts for c in range(s.shape[2])]

    def drawn(self, generator: torch.Generator, dtype: torch.dtype) -> list[tuple[float, Tensor]]:
        """Sign, and the sum of all s_nc with random signs."""
        found = []
        for sign, s in self._parts:
            random = torch.randint(2, (s.shape[0], s.shape[2]), generator=generator).to(s) * 2 - 1
            found.append((sign, torch.einsum("nac,nc->na", s, random).to(dtype).view(self._shape)))
        return found


def _cholesky(blocks: Tensor, floors: Tensor) -> list[tuple[float, Tensor]] | None:
    """The columns of the Cholesky factors of many small matrices that may be singular; None where one is indefinite."""
    rest = blocks.clone()
    columns = []
    for c in range(blocks.shape[1]):
        pivot = rest[:, c, c]
        if bool((pivot < -floors).any()):
            return None
        column = rest[:, :, c] * torch.where(pivot > floors, pivot, torch.inf).rsqrt()[:, None]
        rest -= column[:, :, None] * column[:, None, :]
        if bool(column.any()):
            columns.append(column)
    if bool((rest.abs().amax((1, 2)) > 10 * floors).any()):  # a zero on the diagonal beside something else: indefinite
        return None
    return [(1.0, torch.stack(columns, 2))] if columns else []


def _eigen(blocks: Tensor, floors: Tensor) -> list[tuple[float, Tensor]]:
    """Eigenvectors times the roots of positive eigenvalues, and of negative ones."""
    values, vectors = torch.linalg.eigh(blocks)
    found = []
    for sign in (1.0, -1.0):
        roots = (sign * values).where(sign * values > floors[:, None], 0).sqrt()
        some = (roots > 0).any(0)
        if bool(some.any()):
            found.append((sign, (vectors * roots[:, None, :])[:, :, some]))
    return found


def factors_of(cut: Outputs) -> tuple[Factors, float]:
    """The loss's second derivative at each sample's output, factored; and its relative asymmetry.

    Args:
        cut: One batch.

    Returns:
        Both.

    Raises:
        CurvatureError: Outputs are too wide, or the loss ties samples together.
    """
    z = cut.outputs[0]
    count, width = len(z), z[0].numel()
    if width > WIDEST:
        raise CurvatureError(
            f"the outputs of one sample have {width} entries, more than {WIDEST}, too many to factor; take trace(ggn(...)), which estimates"
        )
    blocks = torch.empty(count, width, width, dtype=torch.float64, device=z.device)
    for c in range(width):
        unit = torch.zeros(count, width, dtype=z.dtype, device=z.device)
        unit[:, c] = 1
        blocks[:, :, c] = cut.curved([unit.view(z.shape)])[0].reshape(count, width)
    scale = float(blocks.abs().max())
    if count > 1:  # what moves in one half of the samples must not change the slopes of the other
        half = torch.ones_like(z)
        half[1::2] = 0
        if float(cut.curved([half * _ramp(z)])[0][1::2].abs().max()) > 1e-5 * scale:
            raise CurvatureError(
                "loss ties the samples of a batch together, as a contrastive loss does, so that no sample has a curvature of its "
                "own at its output; take trace(ggn(...)), which estimates"
            )
    asymmetry = float((blocks - blocks.mT).abs().max()) / scale if scale else 0.0
    return Factors((blocks + blocks.mT) / 2, z.shape, 20 * torch.finfo(z.dtype).eps), asymmetry


def _ramp(z: Tensor) -> Tensor:
    """Numbers in the shape of the outputs of which no two are the same, so that nothing cancels."""
    return torch.linspace(0.5, 1.5, z.numel(), dtype=z.dtype, device=z.device).view(z.shape)
