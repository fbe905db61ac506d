"""What a factory of setups must be."""

import functools

import pytest
import torch
from repair_cases import healthy, make_setup, too_slow
from torch import nn

from trimtab.errors import SetupError, UsageError
from trimtab.repairs.factory import identity, look_over


def lazy(seed):
    return make_setup(seed, net=lambda: nn.Sequential(nn.LazyLinear(16), nn.ReLU(), nn.Linear(16, 4)))


def test_steps_and_whether_seeds_differ():
    assert look_over(healthy) == (100, True)
    assert look_over(lambda seed: healthy(3)) == (100, False)


@pytest.mark.parametrize("differs", ["weights", "data", "random numbers"])
def test_one_thing_that_differs_is_enough(differs):
    def make(seed):
        setup = make_setup(0)
        with torch.no_grad():
            setup.model[0].bias[0] = seed if differs == "weights" else 0
        batch = (torch.full((4, 2), float(seed if differs == "data" else 0)), torch.zeros(4, dtype=torch.long))
        setup.batches = lambda: [batch]
        torch.manual_seed(seed if differs == "random numbers" else 0)  # of dropout
        return setup

    assert look_over(make) == (100, True)


def test_random_states_are_as_they_were():
    before = torch.get_rng_state()
    look_over(healthy)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_factory_without_a_seed_is_refused():
    with pytest.raises(UsageError, match="make_setup must take a seed"):
        look_over(lambda: healthy(0))


def test_a_lazy_model_is_refused_with_what_to_do():
    with pytest.raises(SetupError, match="call the model once on a batch"):
        look_over(lazy)


def test_a_setup_or_a_model_that_is_given_twice_is_refused():
    setup = healthy(0)
    with pytest.raises(SetupError, match="must make a new model and optimizer at each call"):
        look_over(lambda seed: setup)
    net = nn.Sequential(nn.Linear(2, 16), nn.ReLU(), nn.Linear(16, 4))
    with pytest.raises(SetupError, match="must make a new model and optimizer at each call"):
        look_over(lambda seed: make_setup(seed, net=lambda: net))


def test_a_factory_of_other_code_is_another():
    first = identity(lambda seed: make_setup(seed, lr=0.1))
    assert first != identity(lambda seed: make_setup(seed, lr=0.2))
    assert identity(too_slow) == identity(too_slow)
    assert identity(functools.partial(make_setup, lr=0.1)) != identity(functools.partial(make_setup, lr=0.2))
