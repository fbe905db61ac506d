"""Wrong arguments: the message names the argument, what it was and what was expected."""

import math

import pytest
import torch

from trimtab.errors import NormalizationError, TrimtabError
from trimtab.norms import functional as f

X = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
ONES = torch.ones(6)
STATE = (torch.ones(3), torch.ones(30))
LAST = X.mT  # samples, positions, channels

EPS_TAKERS = {
    "batch": lambda eps: f.batch_norm(X, None, None, training=True, eps=eps),
    "batch, running": lambda eps: f.batch_norm(X, ONES, ONES, eps=eps),
    "batch parts": lambda eps: f.batch_norm_forward(X, None, None, training=True, eps=eps),
    "instance": lambda eps: f.instance_norm(X, eps=eps),
    "instance parts": lambda eps: f.instance_norm_forward(X, eps=eps),
    "group": lambda eps: f.group_norm(X, 2, eps=eps),
    "group parts": lambda eps: f.group_norm_forward(X, 2, eps=eps),
    "layer": lambda eps: f.layer_norm(X, 5, eps=eps),
    "layer parts": lambda eps: f.layer_norm_forward(X, 5, eps=eps),
    "rms": lambda eps: f.rms_norm(X, 5, eps=eps),
    "rms parts": lambda eps: f.rms_norm_forward(X, 5, eps=eps),
    "spectral": lambda eps: f.spectral_norm(X, *STATE, eps=eps),
}


@pytest.mark.parametrize("eps", [0.0, -1e-5, math.nan, math.inf])
@pytest.mark.parametrize("method", EPS_TAKERS)
def test_eps_must_be_a_positive_number(method, eps):
    with pytest.raises(NormalizationError, match=f"eps is {eps}; a finite number > 0"):
        EPS_TAKERS[method](eps)


WRONG = {
    "one axis": (lambda: f.batch_norm(X[0, 0], None, None, training=True), r"shape \(5,\); at least two axes"),
    "integers": (lambda: f.layer_norm(X.long(), 5), "input has dtype torch.int64; float16"),
    "complex": (lambda: f.rms_norm(X.cfloat(), 5), "dtype torch.complex64"),
    "weight": (lambda: f.batch_norm(X, None, None, ONES[:4], training=True), r"weight has shape \(4,\); \(6,\)"),
    "bias": (lambda: f.group_norm(X, 2, ONES, ONES[:4]), r"bias has shape \(4,\); \(6,\)"),
    "layer weight": (lambda: f.layer_norm(X, (6, 5), ONES), r"weight has shape \(6,\); \(6, 5\)"),
    "rms weight": (lambda: f.rms_norm(X, 5, ONES), r"weight has shape \(6,\); \(5,\)"),
    "running shape": (lambda: f.batch_norm(X, ONES[:4], ONES), r"running_mean has shape \(4,\); \(6,\)"),
    "one buffer": (lambda: f.batch_norm(X, ONES, None), "running_var is None and its partner is not"),
    "no buffers": (lambda: f.batch_norm(X, None, None), "None with training=False; both are needed"),
    "no buffers in parts": (lambda: f.batch_norm_forward(X, None, None), "None with training=False"),
    "no buffers in instance": (lambda: f.instance_norm(X, use_input_stats=False), "None with use_input_stats=False"),
    "no counter": (lambda: f.batch_norm(X, ONES.clone(), ONES.clone(), training=True, momentum=None), "num_batches_tr"),
    "one value": (lambda: f.batch_norm(X[:1, :, 0], None, None, training=True), "one value a channel"),
    "one position": (lambda: f.instance_norm(X[:, :, :1]), "one value a sample and channel"),
    "one value a group": (lambda: f.group_norm(X[:1, :, 0], 6), "a group is one value"),
    "groups": (lambda: f.group_norm(X, 4), r"num_groups is 4 for 6 channels.*one of \[1, 2, 3, 6\]"),
    "48 in 32": (lambda: f.group_norm(X.new_zeros(2, 48), 32), "num_groups is 32 for 48 channels.*16, 24, 48"),
    "no groups": (lambda: f.group_norm(X, 0), "num_groups is 0"),
    "trailing": (lambda: f.layer_norm(X, (3, 5)), r"shape \(3, 6, 5\); it must end in normalized_shape.*\(3, 5\)"),
    "more trailing": (lambda: f.rms_norm(X, (1, 3, 6, 5)), "must end in normalized_shape"),
    "nothing trailing": (lambda: f.layer_norm(X, ()), "normalized_shape is empty"),
    "sample axis": (lambda: f.batch_norm(X, None, None, training=True, channel_axis=0), "channel_axis is 0"),
    "no such axis": (lambda: f.group_norm(X, 2, channel_axis=3), r"channel_axis is 3 .*1 to 2"),
    "mask length": (
        lambda: f.batch_norm(X, None, None, training=True, mask=torch.ones(3, 4).bool()),
        r"mask has shape \(3, 4\); \(3, 5\) is needed: the input's \(3, 6, 5\) without the channels",
    ),
    "mask with channels": (lambda: f.group_norm(X, 2, mask=torch.ones(3, 6, 5).bool()), r"mask has shape \(3, 6, 5\)"),
    "mask of numbers": (lambda: f.instance_norm(X, mask=torch.ones(3, 5)), "mask has dtype torch.float32; torch.bool"),
    "layer mask": (
        lambda: f.layer_norm(LAST, 6, mask=torch.ones(3, 6).bool()),
        r"mask has shape \(3, 6\); \(3, 5\) is needed: leading axes",
    ),
    "rms mask": (lambda: f.rms_norm(LAST, 6, mask=torch.ones(2).bool()), r"mask has shape \(2,\); \(3,\)"),
    "dy": (lambda: f.layer_norm_backward(X[0], f.layer_norm_forward(X, 5)), r"dy has shape \(6, 5\); \(3, 6, 5\)"),
    "length": (lambda: f.weight_norm(X, ONES), r"g has shape \(6,\); \(3, 1, 1\) is needed: one length for each"),
    "whole length": (lambda: f.weight_norm(X, ONES, dim=None), r"g has shape \(6,\); \(\) is needed"),
    "weight axis": (lambda: f.weight_norm(X, ONES, dim=3), r"dim is 3 for v of shape \(3, 6, 5\)"),
    "dw": (
        lambda: f.weight_norm_backward(X[0], f.weight_norm_forward(X, X.new_ones(3, 1, 1))),
        r"dw has shape \(6, 5\)",
    ),
    "vector": (lambda: f.spectral_norm(ONES, *STATE), r"weight has shape \(6,\); a matrix is needed"),
    "spectral axis": (lambda: f.spectral_norm(X, *STATE, dim=3), "dim is 3"),
    "iterations": (lambda: f.spectral_norm(X, *STATE, -1), "n_power_iterations is -1; 0 or more"),
    "left vector": (lambda: f.spectral_norm(X, ONES, STATE[1]), r"u has shape \(6,\); \(3,\) is needed.*3 x 30"),
    "right vector": (lambda: f.spectral_norm(X, STATE[0], ONES), r"v has shape \(6,\); \(30,\) is needed"),
    "spectral dy": (
        lambda: f.spectral_norm_backward(X[0], f.spectral_norm_forward(X, *STATE)),
        r"dy has shape \(6, 5\)",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_message_says_what_was_given_and_what_is_needed(case):
    call, message = WRONG[case]
    with pytest.raises(NormalizationError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TrimtabError)


def test_a_wrong_call_moves_nothing():
    buffers, tracked = [ONES.clone(), ONES.clone()], torch.tensor(0)
    with pytest.raises(NormalizationError):
        f.batch_norm(X, *buffers, training=True, mask=torch.ones(3, 4).bool(), num_batches_tracked=tracked)
    assert all(torch.equal(buffer, ONES) for buffer in buffers)
    assert int(tracked) == 0
