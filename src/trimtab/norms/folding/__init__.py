"""Normalizations folded into the linear layers beside them."""

from trimtab.norms.folding._fold import Folded as Folded
from trimtab.norms.folding._fold import FoldedPair as FoldedPair
from trimtab.norms.folding._fold import fold as fold
from trimtab.norms.folding._plan import FixedRank as FixedRank
