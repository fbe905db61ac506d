"""One kind of normalization turned into another."""

from trimtab.norms.converting._convert import Converted as Converted
from trimtab.norms.converting._convert import LayerChange as LayerChange
from trimtab.norms.converting._convert import convert as convert
