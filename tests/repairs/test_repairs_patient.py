"""What is tried on fresh copies of a run before it is proposed."""

import pytest
from repair_cases import healthy

from trimtab.errors import RepairError
from trimtab.repairs.patient import Patient


class Failing:
    def __init__(self, error):
        self.error = error

    def apply(self, setup):
        raise self.error


@pytest.mark.parametrize("error", [RepairError("no"), IndexError("a list"), ValueError("an uninitialized parameter")])
def test_a_change_that_fails_in_any_way_is_not_taken(error):
    assert not Patient(lambda: healthy(0)).takes(Failing(error))


def test_a_factory_that_fails_is_shown():
    calls = []

    def make():
        calls.append(1)
        if len(calls) > 1:
            raise ValueError("of the user's own")
        return healthy(0)

    patient = Patient(make)
    with pytest.raises(ValueError, match="of the user's own"):
        patient.takes(Failing(RepairError("no")))
