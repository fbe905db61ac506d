"""Static facts about the normalizations of a model."""

from trimtab.norms.auditing._audit import audit as audit
from trimtab.norms.auditing._fact import Fact as Fact
from trimtab.norms.auditing.buffers import momentum_for_updates as momentum_for_updates
