"""First and second derivatives of every functional form against finite differences, in reverse and forward mode."""

import pytest
import torch
from torch.autograd import gradcheck, gradgradcheck

from trimtab.norms import functional as f

pytestmark = pytest.mark.filterwarnings("ignore:.*torch.jit.script.*:DeprecationWarning")  # torch's own forward mode

MASK = torch.tensor([[1, 1], [1, 0], [0, 0]]).bool()
ROWS = torch.tensor([[1, 1, 1, 0], [1, 0, 1, 0], [0, 0, 0, 0]]).bool()


def values(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


X = values(3, 4, 2)  # samples, channels, positions
MEAN, VAR = values(4, seed=1), values(4, seed=2).exp()
U, V = f.spectral_state(X, dim=1, generator=torch.Generator().manual_seed(3))

FORMS = {
    "batch": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True),
    "batch, running statistics": lambda x, w, b: f.batch_norm(x, MEAN, VAR, w, b),
    "batch, masked": lambda x, w, b: f.batch_norm(x, None, None, w, b, training=True, mask=MASK),
    "batch, no parameters": lambda x, w, b: f.batch_norm(x, None, None, training=True) + (w + b).sum(),
    "batch, channels last": lambda x, w, b: f.batch_norm(x.mT, None, None, w, b, training=True, channel_axis=-1),
    "layer": lambda x, w, b: f.layer_norm(x.mT, 4, w, b),
    "layer, masked": lambda x, w, b: f.layer_norm(x, (4, 2), mask=ROWS) * w[:, None] + b[:, None],
    "group": lambda x, w, b: f.group_norm(x, 2, w, b),
    "group, masked": lambda x, w, b: f.group_norm(x, 2, w, b, mask=MASK),
    "instance": lambda x, w, b: f.instance_norm(x, None, None, w, b),
    "instance, running statistics": lambda x, w, b: f.instance_norm(x, MEAN, VAR, w, b, use_input_stats=False),
    "rms": lambda x, w, b: f.rms_norm(x.mT, 4, w) + b,
    "weight": lambda x, w, b: f.weight_norm(x, w.reshape(1, 4, 1), dim=1) + b[:, None],
    "weight, whole": lambda x, w, b: f.weight_norm(x, w[0], dim=None) + b[:, None],
    "weight, vector": lambda x, w, b: f.weight_norm(w, b) + x.sum(),
    "spectral": lambda x, w, b: f.spectral_norm(x, U, V, 0, dim=1)[0] + (w * b)[:, None],
}


@pytest.fixture
def inputs():
    return [t.clone().requires_grad_() for t in (X, values(4, seed=4), values(4, seed=5))]


@pytest.mark.parametrize("form", FORMS)
def test_first_derivative(form, inputs):
    assert gradcheck(FORMS[form], inputs, check_forward_ad=True, check_batched_grad=True)


@pytest.mark.parametrize("form", FORMS)
def test_second_derivative(form, inputs):
    assert gradgradcheck(FORMS[form], inputs, check_fwd_over_rev=True, check_batched_grad=True)


def test_gradients_reach_a_loss_through_the_statistics():
    """The parts are differentiable too: a penalty on a batch's variance trains as any loss."""

    def penalty(x):
        parts = f.batch_norm_forward(x, None, None, training=True)
        return (parts.variance - 1.0).square().sum() + parts.mean.square().sum() + parts.gain.log().sum()

    assert gradcheck(penalty, X.clone().requires_grad_())


def test_explicit_backward_is_differentiable():
    """Its parts can stand in a loss, such as a penalty on the share that is projected out."""

    def penalty(x, dy):
        gradients = f.layer_norm_backward(dy, f.layer_norm_forward(x.mT, 4, values(4, seed=7)))
        return gradients.projected.sum() + gradients.through_variance.square().sum()

    assert gradcheck(penalty, (X.clone().requires_grad_(), values(3, 2, 4, seed=8).requires_grad_()))
