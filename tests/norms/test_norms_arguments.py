"""Arguments of a wrong kind: the error is ours, names the argument and says what is needed."""

import math

import numpy as np
import pytest
import torch
from torch import nn

from trimtab import Standardizer, norms
from trimtab.errors import NormalizationError
from trimtab.norms import functional as f
from trimtab.norms import layers
from trimtab.norms.attention import Attention
from trimtab.norms.transformer import FeedForward

X = torch.randn(3, 6, 5, generator=torch.Generator().manual_seed(0))
ROWS = torch.randn(16, 6, generator=torch.Generator().manual_seed(1))
ONES = torch.ones(6)
MATRIX, U, V = torch.randn(4, 6), torch.ones(4) / 2, torch.ones(6)
FITTED = Standardizer().fit(ROWS)


def net():
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


def batch(**more):
    return f.batch_norm(X, None, None, **({"training": True} | more))


def instance(**more):
    return f.instance_norm(X, **more)


def fold_into(example=ROWS, model=None, **more):
    return FITTED.fold_into(net() if model is None else model, example, **more)


def called(layer, *arguments, **more):
    return lambda: layer(*arguments, **more)


CALLS = {
    # pure functions
    "input of numpy": (lambda: f.layer_norm(X.numpy(), 5), "input is a ndarray .*torch.as_tensor"),
    "input of None": (lambda: f.batch_norm(None, None, None), "input is None; a tensor"),
    "input, sparse": (lambda: f.rms_norm(torch.eye(5).to_sparse(), 5), "input has layout"),
    "weight of a number": (lambda: batch(weight=3.0), "weight is 3.0; a tensor"),
    "bias of a list": (lambda: f.group_norm(X, 2, ONES, [0.0] * 6), r"bias is \[0.0"),
    "mask of a list": (lambda: batch(mask=[[True] * 5] * 3), "mask is .*; a tensor"),
    "leading mask of a list": (lambda: f.layer_norm(X, 5, mask=[True] * 3), "mask is .*; a tensor"),
    "eps of None": (lambda: batch(eps=None), "eps is None; a finite number > 0"),
    "eps of a word": (lambda: f.rms_norm(X, 5, eps="small"), "eps is 'small'"),
    "eps of a tensor": (lambda: f.group_norm(X, 2, eps=torch.ones(2)), r"eps is a Tensor of shape \(2,\)"),
    "momentum of a word": (lambda: batch(momentum="0.1"), "momentum is '0.1'; a finite number"),
    "momentum, nan": (lambda: batch(momentum=math.nan), "momentum is nan"),
    "momentum of None": (lambda: instance(momentum=None), "momentum is None; a finite number"),
    "counter": (lambda: batch(num_batches_tracked=0), "num_batches_tracked is 0; a tensor"),
    "counter of floats": (lambda: batch(num_batches_tracked=torch.ones(1)), "num_batches_tracked has shape"),
    "training": (lambda: batch(training="no"), "training is 'no'; True or False"),
    "input statistics": (lambda: instance(use_input_stats=None), "use_input_stats is None"),
    "axis of a word": (lambda: batch(channel_axis="last"), "channel_axis is 'last'"),
    "groups of a number": (lambda: f.group_norm(X, 2.0), "num_groups is 2.0"),
    "sizes of a word": (lambda: f.layer_norm(X, "last"), "normalized_shape is 'last'"),
    "sizes of numbers": (lambda: f.rms_norm(X, (6.0, 5)), "normalized_shape is "),
    "running mean": (lambda: f.batch_norm(X, 0.0, ONES), "running_mean is 0.0; a tensor"),
    "dy of None": (lambda: f.layer_norm_backward(None, f.layer_norm_forward(X, 5)), "dy is None"),
    "parts": (lambda: f.layer_norm_backward(X, X), "normalized is a Tensor .*_forward"),
    "parts of a weight": (lambda: f.weight_norm_backward(MATRIX, MATRIX), "normalized is"),
    "parts of a spectrum": (lambda: f.spectral_norm_backward(MATRIX, None), "normalized is None"),
    "v": (lambda: f.weight_norm(MATRIX.numpy(), torch.ones(4, 1)), "v is a ndarray"),
    "g": (lambda: f.weight_norm(MATRIX, 1.0), "g is 1.0"),
    "dim": (lambda: f.weight_norm(MATRIX, torch.ones(4, 1), dim="0"), "dim is '0'"),
    "u": (lambda: f.spectral_norm(MATRIX, None, V), "u is None"),
    "spectral dim": (lambda: f.spectral_norm(MATRIX, U, V, dim=0.0), "dim is 0.0"),
    "iterations": (lambda: f.spectral_norm(MATRIX, U, V, 1.5), "n_power_iterations is 1.5"),
    "generator": (lambda: f.spectral_state(MATRIX, generator=3), "generator is 3"),
    # layers
    "features": (lambda: layers.MaskedBatchNorm1d("6"), "num_features is '6'"),
    "layer's eps": (lambda: layers.BatchRenorm1d(6, eps="small"), "eps is 'small'"),
    "layer's momentum": (lambda: layers.GhostBatchNorm1d(6, momentum="0.1"), "momentum is '0.1'"),
    "affine": (lambda: layers.CheckpointedBatchNorm1d(6, affine="no"), "affine is 'no'"),
    "device": (lambda: layers.MaskedBatchNorm2d(6, device="gpu"), "device is 'gpu'"),
    "dtype": (lambda: layers.MaskedBatchNorm2d(6, dtype=torch.int64), "dtype is torch.int64"),
    "ghost size": (lambda: layers.GhostBatchNorm1d(6, ghost_size=2.5), "ghost_size is 2.5; a whole number"),
    "limit": (lambda: layers.BatchRenorm1d(6, r_max=None), "r_max is None"),
    "warm-up": (lambda: layers.BatchRenorm1d(6, warm_up=5), "warm_up is 5; three step numbers"),
    "input of a layer": (called(layers.GhostBatchNorm1d(6), X.numpy()), "input is a ndarray"),
    "mask of a layer": (called(layers.MaskedBatchNorm1d(6), X, [True]), r"mask is \[True\]"),
    "rms sizes": (lambda: layers.RMSNorm("5"), "normalized_shape is '5'"),
    "rms eps": (lambda: layers.RMSNorm(5, eps="small"), "eps is 'small'"),
    "rms affine": (lambda: layers.RMSNorm(5, elementwise_affine=None), "elementwise_affine is None"),
    "rms device": (lambda: layers.RMSNorm(5, device=2.5), "device is 2.5"),
    "rms input": (called(layers.RMSNorm(5), [1.0]), r"x is \[1.0\]"),
    "convolution's channels": (lambda: layers.WSConv1d(6.0, 4, 3), "in_channels is 6.0"),
    "kernel": (lambda: layers.WSConv2d(6, 4, "3"), "kernel_size is '3'"),
    "stride": (lambda: layers.WSConv2d(6, 4, 3, stride=None), "stride is None"),
    "padding": (lambda: layers.WSConv2d(6, 4, 3, padding=-1), "padding is -1"),
    "padding mode": (lambda: layers.WSConv2d(6, 4, 3, padding_mode="zero"), "padding_mode is 'zero'"),
    "linear features": (lambda: layers.WSLinear("6", 4), "in_features is '6'"),
    "scaled": (lambda: layers.WSLinear(6, 4, scaled="yes"), "scaled is 'yes'"),
    "weight": (lambda: layers.standardized_weight([[1.0, 2.0]]), "weight is .*; a tensor"),
    "weight of one axis": (lambda: layers.standardized_weight(ONES), r"weight has shape \(6,\)"),
    "weight's eps": (lambda: layers.standardized_weight(MATRIX, eps=None), "eps is None"),
    "gain": (lambda: layers.standardized_weight(MATRIX, scaled=True, gain=2.0), "gain is 2.0"),
    "clipping": (lambda: layers.adaptive_clip_grad_([ONES], "0.01"), "clipping is '0.01'"),
    "parameters": (lambda: layers.adaptive_clip_grad_(["weight"]), r"parameters is \['weight'\]"),
    "parameters of a model": (lambda: layers.adaptive_clip_grad_(net()), "parameters is a Sequential"),
    "loss scale": (lambda: layers.adaptive_clip_grad_([ONES], loss_scale="2"), "loss_scale is '2'"),
    "optimizer to clip": (lambda: layers.clip_gradients_adaptively(net()), "optimizer is a Sequential"),
    "exclude": (
        lambda: layers.clip_gradients_adaptively(torch.optim.SGD([ONES]), exclude=["fc"]),
        r"exclude is \['fc'\]",
    ),
    "frozen features": (lambda: norms.FrozenBatchNorm(2.5), "num_features is 2.5"),
    "frozen eps": (lambda: norms.FrozenBatchNorm(6, eps=None), "eps is None"),
    "channels": (lambda: norms.ChannelAffine("6"), "channels is '6'"),
    "channel axis": (lambda: norms.ChannelAffine(6, axis="first"), "axis is 'first'"),
    "channel input": (called(norms.ChannelLayerNorm(6), ONES), r"x is a Tensor of shape \(6,\)"),
    # residual blocks and transformers
    "branch": (lambda: norms.Residual(torch.relu, norm=nn.LayerNorm(8)), "branch is a .*torch.nn.Module"),
    "branch of a class": (lambda: norms.Residual(nn.ReLU), "branch is the class ReLU"),
    "placement": (lambda: norms.Residual(net(), ["pre"]), r"placement is \['pre'\]; one of 'pre'"),
    "dropout": (lambda: norms.Residual(net(), norm=nn.LayerNorm(6), dropout="0.1"), "dropout is '0.1'"),
    "factor": (lambda: norms.Residual(net(), "rezero", branch_scale="1"), "branch_scale is '1'"),
    "skip": (lambda: norms.Residual(net(), "deep", nn.LayerNorm(6), skip_scale="2"), "skip_scale is '2'"),
    "depth": (lambda: norms.Residual(net(), "scaled", depth=2.5), "depth is 2.5"),
    "norm that needs a width": (lambda: norms.Residual(net(), norm=nn.LayerNorm), "norm cannot be called"),
    "norm that makes no module": (lambda: norms.Residual(net(), norm=lambda: 3), "what norm makes is 3"),
    "encoder layers": (lambda: norms.deepnorm_scales(2.5), "encoder_layers is 2.5"),
    "width": (lambda: norms.Transformer("8", 2, 1), "d_model is '8'"),
    "heads": (lambda: norms.TransformerLayer(8, 2.0), "nhead is 2.0"),
    "layers of a stack": (lambda: norms.Transformer(8, 2, "1"), "num_layers is '1'"),
    "feed-forward width": (lambda: norms.TransformerLayer(8, 2, None), "dim_feedforward is None"),
    "dropout of a stack": (lambda: norms.Transformer(8, 2, 1, dropout=2.0), "dropout is 2.0; a number from 0 to 1"),
    "activation": (lambda: norms.Transformer(8, 2, 1, activation=3), "activation is 3"),
    "activation of a class": (lambda: FeedForward(8, 16, activation=nn.ReLU), "activation is the class ReLU"),
    "norm of a stack": (lambda: norms.Transformer(8, 2, 1, norm="rms"), "norm is 'rms'"),
    "scale": (lambda: norms.TransformerLayer(8, 2, placement="deep", scale=2.0), "scale is 2.0"),
    "cross attention": (lambda: norms.Transformer(8, 2, 1, cross_attention="no"), "cross_attention is 'no'"),
    "bias of a stack": (lambda: norms.Transformer(8, 2, 1, bias="no"), "bias is 'no'"),
    "heads of attention": (lambda: Attention(8, None), "nhead is None"),
    "stream": (called(norms.Transformer(8, 2, 1), ROWS), r"x is a Tensor of shape \(16, 6\); .*positions, 8"),
    "memory": (
        called(norms.Transformer(8, 2, 1, cross_attention=True), torch.ones(2, 3, 8), ROWS),
        r"memory is a Tensor of shape \(16, 6\)",
    ),
    "mask of a stack": (called(norms.Transformer(8, 2, 1), torch.ones(2, 3, 8), mask=[True]), "mask is"),
    "causal": (called(norms.Transformer(8, 2, 1), torch.ones(2, 3, 8), causal="no"), "causal is 'no'"),
    # whole models
    "audit's model": (lambda: norms.audit(nn.Linear), "model is the class Linear; .*make one"),
    "optimizer": (lambda: norms.audit(net(), 3), "optimizer is 3; a torch.optim.Optimizer"),
    "everything": (lambda: norms.audit(net(), everything="yes"), "everything is 'yes'"),
    "example of a model without values": (lambda: norms.audit(net().to("meta"), example=ROWS), "model has 0.weight on"),
    "momentum": (lambda: norms.momentum_for_updates("0.1", 2), "momentum is '0.1'"),
    "updates": (lambda: norms.momentum_for_updates(0.1, 2.5), "updates is 2.5"),
    "to": (lambda: norms.convert(net(), None), "to is None; known are"),
    "groups of a word": (lambda: norms.convert(net(), "group_norm", groups="2"), "groups is '2'; a whole number"),
    "groups without use": (lambda: norms.convert(net(), "layer_norm", groups=2), "groups is 2, but layer_norm has no"),
    "layers of a word": (lambda: norms.convert(net(), "none", layers="1"), r"layers is '1'; .*write layers=\['1'\]"),
    "layers of numbers": (lambda: norms.convert(net(), "none", layers=[1]), r"layers is \[1\]"),
    "forward": (lambda: norms.convert(net(), "none", [ROWS], forward=net()), "forward is a Sequential"),
    "batches of a word": (lambda: norms.convert(net(), "none", "no"), "batches is 'no'"),
    "batches of one": (lambda: norms.convert(net(), "none", ROWS), r"batches is a Tensor .*batches=\[batch\]"),
    "batches without samples": (lambda: norms.convert(net(), "layer_norm", [ROWS[:0]]), "batches are empty"),
    "conversion without values": (lambda: norms.convert(net().to("meta"), "none", [ROWS]), "model has 0.weight on"),
    "kinds of a word": (lambda: norms.fold(net(), kinds="affine"), r"kinds is 'affine'; .*write kinds=\['affine'\]"),
    "kinds of numbers": (lambda: norms.fold(net(), kinds=3), "kinds is 3"),
    "an example of nan": (lambda: norms.fold(net().eval(), torch.full((2, 6), math.nan)), "example makes the model"),
    "upstream": (lambda: norms.recalibrate(net(), [ROWS], upstream=None), "upstream is None; one of"),
    "batches of a number": (lambda: norms.recalibrate(net(), 3), "batches is 3"),
    "batches of a mapping": (lambda: norms.recalibrate(net(), {"x": ROWS}), "batches is a dict"),
    "batches of an array": (lambda: norms.recalibrate(net(), ROWS.numpy()), "batches is a ndarray"),
    "what batches returns": (lambda: norms.recalibrate(net(), lambda: 3), r"batches\(\) returns is 3"),
    "layers to recalibrate": (lambda: norms.recalibrate(net(), [ROWS], layers=3), "layers is 3"),
    "group": (lambda: norms.recalibrate(net(), [ROWS], group="all"), "group is 'all'"),
    "inplace": (lambda: norms.recalibrate(net(), [ROWS], inplace="no"), "inplace is 'no'"),
    "recalibration without values": (lambda: norms.recalibrate(net().to("meta"), [ROWS]), "model has 0.weight on"),
    "task of None": (lambda: norms.recommend(None), "task is None; a word"),
    "task of a class": (lambda: norms.recommend(nn.Linear), "task is the class Linear"),
    "batch": (lambda: norms.recommend("diffusion", "no"), "batch is 'no'"),
    "batch size": (lambda: norms.recommend("diffusion", batch_size="4"), "batch_size is '4'"),
    "channels of a layer": (lambda: norms.recommend("diffusion", channels=2.5), "channels is 2.5"),
    "padded": (lambda: norms.recommend("diffusion", padded="no"), "padded is 'no'"),
    "dtype of activations": (lambda: norms.recommend("diffusion", dtype="half"), "dtype is 'half'"),
    # the standardizer
    "weights of a word": (lambda: Standardizer().fit(ROWS, sample_weight="no"), "sample_weight is 'no'"),
    "weights of words": (lambda: Standardizer().partial_fit(ROWS.numpy(), None, ["a"] * 16), "sample_weight is"),
    "weights without values": (
        lambda: Standardizer().fit(ROWS, sample_weight=torch.ones(16, device="meta")),
        "sample_weight is a tensor on the meta device",
    ),
    "data without values": (lambda: Standardizer().fit(ROWS.to("meta")), "X is a tensor on the meta device"),
    "no features": (lambda: Standardizer().fit(torch.tensor(1.0)), "X is a tensor without axes"),
    "copy": (lambda: FITTED.transform(ROWS, copy="no"), "copy is 'no'; True or False"),
    "infinity": (lambda: FITTED.transform(ROWS / 0.0), "X holds infinite values"),
    "infinity back": (lambda: FITTED.inverse_transform(ROWS / 0.0), "X holds infinite values"),
    "complex": (lambda: FITTED.transform(ROWS.cfloat()), "X has dtype torch.complex64"),
    "features of a tensor": (lambda: FITTED.transform(MATRIX.T), r"X has shape \(6, 4\); 6 features"),
    "model of None": (lambda: FITTED.fold_into(None), "model is None; a torch.nn.Module"),
    "unfolded model": (lambda: FITTED.unfold(nn.Linear), "model is the class Linear"),
    "model without values": (lambda: fold_into(None, net().to("meta")), "model has 0.weight on"),
    "example of a word": (lambda: fold_into("no"), "example is 'no'; a batch"),
    "example without samples": (lambda: fold_into(ROWS[:0]), r"example has shape \(0, 6\) and holds no value"),
    "example with nan": (lambda: fold_into(ROWS * math.nan), "example .* holds NaN or infinite values"),
    "example without values": (lambda: fold_into(ROWS.to("meta")), "example is a tensor on the meta device"),
    "example of other features": (lambda: fold_into(ROWS[:, :3]), r"example has shape \(16, 3\); 6 features"),
    "layers to fold into": (lambda: fold_into(layers="0"), "layers is '0'"),
    "padding of a fold": (lambda: fold_into(padding=None), "padding is None; one of 'map'"),
    "layer for targets": (lambda: FITTED.fold_targets_into(net(), layer=3), "layer is 3"),
    "example for targets": (lambda: FITTED.fold_targets_into(nn.Linear(6, 6), "no"), "example is 'no'"),
    "merge": (lambda: FITTED.merge(None), "merge was given a NoneType"),
    "regression": (lambda: norms.conditioning("no"), "X is 'no'"),
    "targets": (lambda: norms.conditioning(ROWS, 3.0), "y is 3.0"),
    "standardizer": (lambda: norms.conditioning(ROWS, standardizer=3), "standardizer is 3; a fitted"),
    "start": (lambda: norms.conditioning(ROWS, start=["mean"]), r"start is \['mean'\]; one of 'mean'"),
    "tolerances": (lambda: norms.conditioning(ROWS, tolerances=0.1), "tolerances is 0.1"),
    "a tolerance": (lambda: norms.conditioning(ROWS, tolerances=["no"]), r"tolerances\[0\] is 'no'"),
}


@pytest.mark.parametrize("case", CALLS)
def test_message_names_the_argument_and_what_is_needed(case):
    call, message = CALLS[case]
    with pytest.raises(NormalizationError, match=message) as caught:
        call()
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("call", "note"),
    [
        (lambda: norms.fold(net().eval(), "no"), "called with example, which is 'no'"),
        (lambda: norms.audit(net(), example=ROWS[:, :3]), r"example, which is a Tensor of shape \(16, 3\)"),
        (lambda: norms.recalibrate(net(), [ROWS[:, :3]]), "called with a batch of batches, which is a Tensor"),
        (lambda: norms.convert(net(), "none", ["no"]), "called with a batch of batches, which is 'no'"),
    ],
)
def test_an_error_of_the_users_own_model_passes_with_a_note_of_what_it_was_called_with(call, note):
    with pytest.raises((RuntimeError, TypeError), match=note):
        call()


def test_numbers_of_numpy_are_numbers():
    assert torch.equal(
        f.layer_norm(X, np.int64(5), eps=np.float32(1e-5)), f.layer_norm(X, 5, eps=float(np.float32(1e-5)))
    )
    assert norms.momentum_for_updates(np.float64(0.1), np.int32(2)) == norms.momentum_for_updates(0.1, 2)
    assert norms.Residual(net(), "rezero", branch_scale=1).alpha.dtype == torch.float32


def test_a_tensor_that_cannot_be_written_to_is_standardized_in_a_copy():
    row = ROWS[:1].clone()
    assert torch.equal(FITTED.transform(row.expand(4, 6), copy=False), FITTED.transform(row).expand(4, 6))
    assert torch.equal(row, ROWS[:1])
    with torch.inference_mode():
        made = ROWS * 1
    assert torch.equal(FITTED.transform(made, copy=False), FITTED.transform(ROWS))


def test_a_batch_without_samples_among_others_changes_no_fit():
    plain, mixed = (norms.convert(net().eval(), "none", given) for given in ([ROWS], [ROWS[:0], ROWS]))
    assert plain.changes[0].max_change == mixed.changes[0].max_change


def test_checks_pass_a_compiler_that_takes_numbers_for_variables():
    """With dynamic=True numbers are symbols; math.isfinite of one breaks the graph."""
    compiled = torch.compile(f.group_norm, fullgraph=True, dynamic=True, backend="aot_eager")
    for x in (X, torch.randn(4, 6, 7)):
        torch.testing.assert_close(compiled(x, 2, eps=1e-4), f.group_norm(x, 2, eps=1e-4))
