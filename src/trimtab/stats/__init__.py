"""Statistics of the tensors of a training run: seven numbers each, cheap enough to take at every step."""

from trimtab.stats._backend import warm_up as warm_up
from trimtab.stats.blocks import is_sampled as is_sampled
from trimtab.stats.blocks import sample_blocks as sample_blocks
from trimtab.stats.moments import FIELDS as FIELDS
from trimtab.stats.moments import Moments as Moments
from trimtab.stats.moments import empty as empty
from trimtab.stats.moments import finish as finish
from trimtab.stats.moments import merge as merge
from trimtab.stats.moments import merge_rows as merge_rows
from trimtab.stats.moments import update as update
from trimtab.stats.tape import Tape as Tape
from trimtab.stats.units import UNIT_FIELDS as UNIT_FIELDS
from trimtab.stats.units import channel_rows as channel_rows
from trimtab.stats.units import unit_summary as unit_summary
