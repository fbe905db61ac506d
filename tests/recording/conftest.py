"""Every test of this room must leave torch as it found it."""

import gc

import pytest
import torch
from torch.nn.modules import module as nn_module
from torch.optim import optimizer as optim_module

BACKWARD = torch.autograd.backward


@pytest.fixture(autouse=True, scope="module")
def _only_what_is_new():
    """What was there before need not be looked through for garbage after each test: that takes seconds."""
    gc.collect()
    gc.freeze()


@pytest.fixture(autouse=True)
def _nothing_left():
    yield
    gc.collect()
    assert torch.autograd.backward is BACKWARD
    assert not optim_module._global_optimizer_pre_hooks
    assert not optim_module._global_optimizer_post_hooks
    assert not nn_module._global_forward_hooks
    assert not nn_module._global_forward_pre_hooks
