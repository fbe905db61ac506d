"""From a record to a diagnosis: one rule a file, and one table of causes."""

from trimtab.diagnosis.check import check
from trimtab.diagnosis.diagnose import check_ignored, diagnose
from trimtab.diagnosis.playbook import playbook
from trimtab.diagnosis.recipe import recipe

__all__ = ["check", "check_ignored", "diagnose", "playbook", "recipe"]
