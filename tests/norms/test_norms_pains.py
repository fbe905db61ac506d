"""What users of normalization report, each with the right behaviour.

The numbers follow the list of 25 reports in the project's notes; each test is named after one, and names the threads in its docstring.
"""

import copy
import multiprocessing
import re
import socket

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn, update_bn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

from trimtab.errors import NormalizationError
from trimtab.norms import functional, layers
from trimtab.norms._groups import group_count
from trimtab.norms.auditing import audit, momentum_for_updates
from trimtab.norms.converting import convert
from trimtab.norms.folding import fold
from trimtab.norms.recalibration import UnequalBatchesWarning, recalibrate
from trimtab.norms.recommendation import recommend


def amiss(model, code, *args, **more):
    return [fact for fact in audit(model, *args, **more) if fact.code == code]


def net(*, norm=nn.BatchNorm1d, **more):
    return nn.Sequential(
        nn.Linear(6, 16), norm(16, **more), nn.ReLU(), nn.Linear(16, 16), norm(16, **more), nn.Linear(16, 3)
    )


def test_pain_01_train_and_eval_differ_and_the_layer_is_named_in_standard_deviations():
    """pytorch#5406, pytorch#4741."""
    model, x = net(momentum=0.01), torch.randn(256, 6) * 3 + 4
    for _ in range(5):
        model(x)
    before = (model.eval()(x) - model.train()(x)).abs().max()
    result = recalibrate(model, list(x.split(64)))
    assert [layer.name for layer in result.layers] == ["1", "4"]
    assert all(layer.shift.max() > 0.5 for layer in result.layers)
    after = (model.eval()(x) - model.train()(x)).abs().max()
    assert after < 0.02 * before  # what is left is n/(n - 1)


def test_pain_02_the_running_variance_is_unbiased_and_training_divides_by_the_biased_one():
    """discuss.pytorch.org/t/18600."""
    for n in (2, 4, 8, 32):
        norm, x = nn.BatchNorm1d(3, eps=1e-30, affine=False).double(), torch.randn(n, 3, dtype=torch.float64)
        recalibrate(norm, [x])
        trained, evaluated = norm(x).var(0, correction=0), copy.deepcopy(norm)
        recalibrate(evaluated, [x])
        ratio = evaluated.eval()(x).var(0, correction=0) / trained
        torch.testing.assert_close(ratio, torch.full_like(ratio, (n - 1) / n), rtol=1e-12, atol=0)
        assert bool(amiss(norm, "elements-per-statistic", example=x)) is (n <= 8)


def test_the_list_is_complete():
    numbers = {int(found[1]) for name in globals() if (found := re.match(r"test_pain_(\d\d)_", name))}
    assert numbers == set(range(1, 26))


def test_pain_03_one_value_per_channel_raises_and_two_are_plus_and_minus_one():
    """mmsegmentation#272, scvi-tools#2314, pytorch-semseg#214."""
    model = net()
    with pytest.raises(ValueError, match="more than 1 value per channel"):  # of PyTorch, which names no layer
        model(torch.randn(1, 6))
    facts = amiss(model, "elements-per-statistic", example=torch.randn(1, 6))
    assert [(fact.module, fact.value) for fact in facts] == [("1", 1), ("4", 1)]
    assert "(1, 16)" in facts[0].text
    assert "drop_last" in facts[0].text
    h = model[1](model[0](torch.randn(2, 6) * 10))
    torch.testing.assert_close(h.abs(), torch.ones_like(h), rtol=0, atol=1e-3)
    assert "+1 and -1" in amiss(model, "elements-per-statistic", example=torch.randn(2, 6))[0].text


def test_pain_03_the_last_batch_of_a_loader_is_the_one():
    """mmsegmentation#272: 33 rows in batches of 16 leave one row, len(dataset) % batch_size == 1."""
    data, model = TensorDataset(torch.randn(33, 6) * 3 + 1), net()

    def found(loader):
        return [len(amiss(model, "elements-per-statistic", example=x)) for (x,) in loader]

    loader = DataLoader(data, batch_size=16)
    assert found(loader) == [0, 0, 2]
    assert found(DataLoader(data, batch_size=16, drop_last=True)) == [0, 0]  # the repair that the fact names
    with pytest.raises(ValueError, match="more than 1 value per channel"):
        update_bn(loader, copy.deepcopy(model))  # stops at the last batch, with the statistics half done
    (first, _) = recalibrate(model, loader).layers
    assert (first.count, first.batches) == (33, 3)  # a row counts as a row
    h = model[0](data.tensors[0])
    torch.testing.assert_close(model[1].running_var, h.var(0), rtol=1e-5, atol=0)


@pytest.mark.parametrize("norm", [nn.GroupNorm(4, 4), nn.LayerNorm(1), nn.RMSNorm(1)])
def test_pain_04_a_group_of_one_value_is_erased_without_an_error(norm):
    """opacus#567."""
    channels = 4 if isinstance(norm, nn.GroupNorm) else 1
    x = torch.randn(64, channels)
    y = norm(x)
    erased = y.abs().max() < 1e-4
    only_sign = torch.allclose(y, x.sign(), atol=1e-2)
    assert erased or only_sign
    (fact,) = amiss(nn.Sequential(norm), "elements-per-statistic", example=x)
    assert fact.value == 1
    for groups in (2, 3, 4, 6):  # of 6, 4, 3 and 2 values
        found = amiss(nn.Sequential(nn.GroupNorm(groups, 12)), "elements-per-statistic", example=torch.randn(8, 12))
        assert [fact.value for fact in found] == ([12 // groups] if 12 // groups < 4 else [])


def test_pain_05_momentum_of_keras_is_one_minus_that_of_torch():
    """pytorch/examples#289, pytorch/vision#8250, deeplab-pytorch#79, ludwig#2100."""
    facts = amiss(net(momentum=0.99), "momentum-convention")
    assert [fact.module for fact in facts] == ["1", "4"]
    assert "last 1.01 batches" in facts[0].text
    assert amiss(net(momentum=1 - 0.99), "momentum-convention") == []


@pytest.mark.parametrize(("momentum", "steps", "weight"), [(0.1, 20, 0.122), (0.01, 100, 0.366)])
def test_pain_06_after_a_few_steps_the_initial_statistics_still_weigh(momentum, steps, weight):
    norm = nn.BatchNorm1d(4, momentum=momentum)
    for _ in range(steps):
        norm(torch.zeros(8, 4))
    assert norm.running_var[0].item() == pytest.approx(weight, abs=5e-4)
    (fact,) = amiss(nn.Sequential(norm), "initial-weight")
    assert fact.value == pytest.approx(weight, abs=5e-4)


def test_pain_07_gradient_accumulation():
    """pytorch#46516, yolov5#1630, GradientAccumulator#6 and #47."""
    x = torch.randn(4096, 32, 1).squeeze(2).T  # 32 rows, many channels
    full = F.batch_norm(x, None, None, training=True)
    for size, expected in ((2, 0.92), (4, 0.60), (8, 0.38), (16, 0.22)):
        micro = torch.cat([F.batch_norm(part, None, None, training=True) for part in x.split(size)])
        assert (micro - full).square().mean().sqrt().item() == pytest.approx(expected, abs=0.02)
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        for _ in range(4):
            model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    facts = amiss(model, "buffers-updated-twice", optimizer)
    assert [(fact.value, fact.expected) for fact in facts] == [(40, "10")] * 2
    assert (1 - momentum_for_updates(0.1, 4)) ** 4 == pytest.approx(0.9)


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_pain_08_checkpointing_updates_twice(use_reentrant):
    """pytorch#96136, pytorch#62471."""

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.body = nn.Linear(6, 6), nn.Sequential(nn.Linear(6, 6), nn.BatchNorm1d(6))

        def forward(self, x):
            return checkpoint(self.body, self.first(x), use_reentrant=use_reentrant)

    model = Net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(3):
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    (fact,) = amiss(model, "buffers-updated-twice", optimizer)
    assert (fact.module, fact.value, fact.expected) == ("body.1", 6, "3")
    assert momentum_for_updates(0.1, 2) == pytest.approx(0.0513, abs=5e-5)
    assert "0.05132" in fact.text
    model = Net()
    model.body[1] = layers.CheckpointedBatchNorm1d(6)
    model(torch.randn(16, 6)).square().mean().backward()
    assert model.body[1].num_batches_tracked == 1


def test_pain_09_extra_forwards_in_training_mode_move_the_buffers():
    model = net()
    optimizer = torch.optim.Adam(model.parameters())
    for _ in range(10):
        model(torch.randn(16, 6)).square().mean().backward()
        optimizer.step()
    assert amiss(model, "buffers-updated-twice", optimizer) == []
    before = model[1].running_mean.clone()
    with torch.no_grad():
        for _ in range(5):  # an evaluation that forgot model.eval()
            model(torch.randn(16, 6))
    assert not torch.equal(model[1].running_mean, before)
    assert [fact.value for fact in amiss(model, "buffers-updated-twice", optimizer)] == [15, 15]


def test_pain_10_the_variance_over_ranks_includes_the_spread_of_their_means():
    """mmdetection#2539, pytorch-image-models#110, pytorch#30718."""
    ranks = [torch.randn(40, 3, dtype=torch.float64) + 5 * rank for rank in range(2)]
    apart = [nn.BatchNorm1d(3).double() for _ in ranks]
    for norm, data in zip(apart, ranks, strict=True):
        recalibrate(norm, [data])
    plain_mean = (apart[0].running_var + apart[1].running_var) / 2
    together = nn.BatchNorm1d(3).double()
    with pytest.warns(UnequalBatchesWarning):
        recalibrate(together, ranks)
    assert (together.running_var / plain_mean).min() > 5
    torch.testing.assert_close(together.running_var, torch.cat(ranks).var(0), rtol=1e-13, atol=0)


def _rank(rank, port, folder):
    import warnings

    import torch.distributed as dist

    warnings.simplefilter("ignore", UnequalBatchesWarning)
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)
    torch.manual_seed(0)
    model = net().double()
    x = torch.load(f"{folder}/x.pt")
    mine = [x[:10], x[10:13], x[13:]] if rank == 0 else [x[:30] + 3]  # other numbers of batches, other data
    result = recalibrate(model, mine, group=dist.group.WORLD)
    counts = [(layer.count, layer.batches) for layer in result.layers]
    torch.save((model.state_dict(), counts, [layer.gap for layer in result.layers]), f"{folder}/{rank}.pt")
    dist.destroy_process_group()


@pytest.mark.slow
def test_pain_11_every_rank_gets_the_same_pooled_statistics(tmp_path):
    """fvcore#152."""
    x = torch.randn(50, 6, dtype=torch.float64)
    torch.save(x, tmp_path / "x.pt")
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    context = multiprocessing.get_context("spawn")
    processes = [context.Process(target=_rank, args=(rank, port, str(tmp_path))) for rank in range(2)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(120)
        assert process.exitcode == 0
    (a, counts, gaps), (b, other, _) = (torch.load(tmp_path / f"{rank}.pt") for rank in range(2))
    assert counts == other == [(80, 4)] * 2
    assert gaps[0] > 0.1
    assert all(torch.equal(a[name], b[name]) for name in a)
    torch.manual_seed(0)
    alone = net().double()
    recalibrate(alone, [torch.cat([x, x[:30] + 3])])
    for name, value in alone.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            torch.testing.assert_close(a[name], value, rtol=1e-12, atol=1e-12)


def test_pain_12_averaged_weights_carry_statistics_of_other_weights():
    """pytorch-image-models#102, #106 and #224, mean-teacher#9, FastGAN#4, ignite#2592."""
    model, x = net(), torch.randn(64, 6)
    averaged = AveragedModel(model)
    for step in range(3):
        with torch.no_grad():
            model[0].weight.mul_(3.0)
        for _ in range(50):
            model(x + step)
        averaged.update_parameters(model)
    assert torch.equal(averaged.module[1].running_mean, model[1].running_mean)  # the latest weights' own
    result = recalibrate(averaged, [x])
    assert max(layer.shift.max().item() for layer in result.layers) > 0.5
    h = averaged.module[:2].eval()(x)
    torch.testing.assert_close(h.mean(0), averaged.module[1].bias, rtol=0, atol=1e-5)


def test_pain_13_averaged_vectors_of_spectral_norm_are_too_short():
    """miles-credit#394: an average over steps takes u and v along, shortens them, and with them sigma; the weight grows."""
    model = spectral_norm(nn.Linear(20, 20, bias=False))
    averaged = AveragedModel(model, multi_avg_fn=get_ema_multi_avg_fn(0.9), use_buffers=True)
    for _ in range(100):
        nn.init.normal_(model.parametrizations.weight.original)
        model(torch.randn(2, 20))  # moves u and v
        averaged.update_parameters(model)
    held = averaged.module.eval().parametrizations.weight
    u, v, weight = held[0]._u, held[0]._v, held.original.detach()
    assert u.norm() < 0.7
    assert v.norm() < 0.7
    assert torch.linalg.matrix_norm(averaged.module.weight.detach(), 2) > 2  # and should be 1

    bare, u, v = functional.spectral_norm(weight, u, v, n_power_iterations=200)
    assert u.norm().item() == pytest.approx(1, abs=1e-6)
    assert v.norm().item() == pytest.approx(1, abs=1e-6)
    assert torch.linalg.matrix_norm(bare, 2).item() == pytest.approx(1, abs=1e-4)
    fresh = functional.spectral_state(weight, n_power_iterations=200)  # or leave the vectors out of the average
    assert [one.norm().item() for one in fresh] == [pytest.approx(1, abs=1e-6)] * 2
    torch.testing.assert_close(
        functional.spectral_norm(weight, *fresh, n_power_iterations=0)[0], bare, rtol=0, atol=1e-4
    )


def test_pain_14_update_bn_weighs_batches_equally():
    """timgaripov/swa#10, pytorch#31498, pycls#93."""
    batches = [torch.randn(100, 3, dtype=torch.float64) * 0.1, torch.randn(2, 3, dtype=torch.float64) * 0.1 + 10]
    theirs, ours = nn.BatchNorm1d(3).double(), nn.BatchNorm1d(3).double()
    update_bn(batches, theirs)
    with pytest.warns(UnequalBatchesWarning, match="the batches are not alike"):
        (layer,) = recalibrate(ours, batches).layers
    rows = torch.cat(batches)
    assert (theirs.running_mean - rows.mean(0)).abs().min() > 4
    assert (theirs.running_var / rows.var(0)).max() < 0.02
    torch.testing.assert_close(ours.running_mean, rows.mean(0), rtol=1e-13, atol=0)
    torch.testing.assert_close(ours.running_var, rows.var(0), rtol=1e-13, atol=0)
    torch.testing.assert_close(layer.mean_of_variances, theirs.running_var, rtol=1e-12, atol=0)  # both are told


def test_pain_15_frozen_batch_norm_still_moves():
    """pytorch#86590, pytorch#66073, ultralytics#8753, gt-pyg#112."""
    model = net()
    model[1].requires_grad_(False)
    before = model[1].running_mean.clone()
    model(torch.randn(16, 6) + 3)
    assert not torch.equal(model[1].running_mean, before)
    assert [fact.module for fact in amiss(model, "frozen-but-moving")] == ["1"]
    frozen = convert(model, "frozen_batch_norm", layers=["1"]).model
    before = frozen[1].running_mean.clone()
    frozen.train()(torch.randn(16, 6) + 3)
    assert torch.equal(frozen[1].running_mean, before)
    assert amiss(frozen, "frozen-but-moving") == []


def test_pain_16_the_buffers_decide_and_not_the_flag():
    """pytorch#20967, pytorch#37823, pytorch#44415, pytorch#156051."""
    model, x = net(), torch.randn(16, 6)
    for norm in (model[1], model[4]):
        norm.track_running_stats = False
    before = model[1].running_mean.clone()
    model(x)
    assert torch.equal(model[1].running_mean, before)
    one_by_one = torch.cat([model.eval()(row) for row in x.split(1)])
    torch.testing.assert_close(one_by_one, model(x))  # by its buffers: no sample depends on the others
    facts = amiss(model, "effective-mode")
    assert [fact.module for fact in facts] == ["1", "4"]
    assert "the buffers decide, not the flag" in facts[0].text
    without = net(track_running_stats=False).eval()
    with pytest.raises(ValueError, match="when training"):  # of PyTorch, in evaluation
        without(x[:1])
    assert not torch.allclose(without(x[:4]), without(x)[:4])
    told = [f for f in audit(without, everything=True) if f.code == "effective-mode"]
    assert all("in evaluation by the batch" in fact.text for fact in told)


def test_pain_17_batch_norm_to_group_norm_is_no_equivalence():
    """Res2Net#74, opacus#580 and #828, lerobot#1887."""
    model = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16, eps=1e-3), nn.ReLU())
    batches = [torch.randn(16, 3, 10, 10) * torch.rand(3, 1, 1) * 3 + 1 for _ in range(4)]
    for x in batches * 20:
        model(x)
    nn.init.normal_(model[1].weight)
    nn.init.normal_(model[1].bias)
    model.eval()
    carried, fitted = convert(model, "group_norm"), convert(model, "group_norm", batches)
    assert torch.equal(carried.model[1].weight, model[1].weight)
    assert torch.equal(carried.model[1].bias, model[1].bias)
    assert carried.model[1].eps == 1e-3
    assert not carried.exact
    assert not fitted.exact
    assert fitted.rms_change > 0
    with torch.no_grad():
        change = torch.cat([carried.model[:2](x) - model[:2](x) for x in batches]).square().mean().sqrt().item()
    assert fitted.changes[0].rms_change < change


def test_pain_18_group_counts():
    """opacus#390, mmcv#688 and #723, 3d-mri#12."""
    model = nn.Sequential(nn.Conv2d(3, 48, 3), nn.BatchNorm2d(48))
    with pytest.raises(NormalizationError, match=r"does not divide the 48 channels of 1; its divisors are"):
        convert(model, "group_norm", groups=32)
    converted = convert(model, "group_norm", [torch.randn(2, 3, 3, 3)])
    assert converted.model[1].num_groups == group_count(48) == 12
    assert "12 groups of 4 channels, 4 values each" in converted.changes[0].note
    assert convert(model, "group_norm", [torch.randn(2, 3, 12, 12)]).model[1].num_groups == 24
    assert recommend("diffusion", channels=48).groups == 12


@pytest.mark.parametrize(
    ("conv", "norm"),
    [
        (nn.Conv2d(4, 4, 3, bias=False), nn.BatchNorm2d(4)),  # mmdetection#2924
        (nn.Conv2d(4, 4, 3, bias=True), nn.BatchNorm2d(4)),  # yolov3#807
        (nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4, affine=False)),  # pytorch#45474
        (nn.ConvTranspose2d(4, 4, 3), nn.BatchNorm2d(4)),  # onnx-simplifier#228, onnx-optimizer#106
        (nn.ConvTranspose2d(4, 6, 3, groups=2), nn.BatchNorm2d(6)),
    ],
)
def test_pain_19_folding(conv, norm):
    model, x = nn.Sequential(conv, norm).double(), torch.randn(2, 4, 6, 6, dtype=torch.float64)
    for _ in range(30):
        model(x * 2 + 1)
    assert "training mode" in fold(model, x).refused[0][1]
    result = fold(model.eval(), x)
    assert len(result.pairs) == 1
    assert (model(x) - result.model(x)).abs().max() < 1e-12
    assert result.model[0].bias is not None


def test_pain_19_folding_what_is_shared_or_has_no_statistics():
    """pytorch#197539."""

    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.a, self.b = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.BatchNorm2d(4)

        def forward(self, x):
            x = self.conv(x)
            return self.a(x) + self.b(x)

    result = fold(Shared().eval(), torch.randn(2, 3, 6, 6))
    assert result.pairs == ()
    assert all("used 2 times" in reason for _, reason in result.refused)
    model = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, track_running_stats=False)).eval()
    assert "no running statistics" in fold(model).refused[0][1]


def test_pain_20_eps_that_half_precision_cannot_hold():
    """pytorch#41527, tensorflow#24979, DeepSpeed#581, diffusers#13316."""
    zeros = torch.zeros(4, 8, dtype=torch.float16)
    assert torch.equal(F.layer_norm(zeros, (8,), eps=1e-12), zeros)  # computed in float32
    assert F.batch_norm(zeros, None, None, training=True, eps=1e-12).isnan().all()
    assert F.normalize(zeros, eps=1e-12).isnan().all()
    for computed in (  # in float32, as all of ours
        functional.batch_norm(zeros, None, None, training=True, eps=1e-12),
        functional.group_norm(zeros, 2, eps=1e-12),
        functional.rms_norm(zeros, 8, eps=1e-12),
    ):
        assert torch.equal(computed, zeros)
    model = net(eps=1e-12).half()
    assert [fact.module for fact in amiss(model, "eps-and-dtype")] == ["1", "4"]
    for task in ("text-encoder", "language-model", "tabular"):
        eps = recommend(task, batch_size=64, dtype=torch.float16).eps
        assert torch.tensor(eps, dtype=torch.float16) > 0
        norm = nn.BatchNorm1d(8, eps=eps).half()
        assert norm(zeros).isfinite().all()


def test_pain_21_eps_against_the_signal():
    for dtype in (torch.float16, torch.bfloat16, torch.float32):
        x = torch.full((4, 64), 1e-3, dtype=dtype)
        norm = nn.RMSNorm(64, dtype=dtype)
        assert norm(x).float().mean().item() == pytest.approx(0.945, abs=5e-3)  # float32's eps, 1.2e-7, in all of them
        (fact,) = amiss(nn.Sequential(norm), "eps-and-variance", example=x)
        assert fact.value == pytest.approx(1.19e-7, rel=1e-2)
        assert "None" in fact.text
    x = torch.randn(64, 512) * 1e-3
    for eps, std in ((1e-6, 0.71), (1e-5, 0.30), (1e-3, 0.03)):
        norm = nn.LayerNorm(512, eps=eps)
        assert norm(x).std().item() == pytest.approx(std, abs=0.01)
        assert len(amiss(nn.Sequential(norm), "eps-and-variance", example=x)) == 1


def test_pain_22_one_infinite_value_kills_running_statistics_for_good():
    """pytorch#90342, pytorch#88474, pytorch#115500."""
    model, x = net(), torch.randn(64, 6)
    poisoned = x.clone()
    poisoned[0, 0] = torch.inf
    model(poisoned)
    for _ in range(100):
        model(x)
    assert not model.eval()(x).isfinite().any()
    facts = amiss(model, "nonfinite-buffers")
    assert facts[0].module == "1"  # the first
    with pytest.raises(NormalizationError, match="input of 1 is not finite"):
        recalibrate(model, [poisoned])
    recalibrate(model, [x])
    assert model(x).isfinite().all()
    assert amiss(model, "nonfinite-buffers") == []


def test_pain_22_half_precision_statistics_stall():
    norm = nn.BatchNorm1d(1, momentum=0.01).bfloat16()
    x = torch.tensor([[0.0], [2.0]]).repeat(500, 1).bfloat16()
    for _ in range(2000):
        norm(x)
    assert norm.running_mean.item() == pytest.approx(0.832, abs=0.005)
    assert len(amiss(nn.Sequential(norm), "buffer-dtype")) == 1
    recalibrate(norm, [x])
    assert norm.running_mean.item() == pytest.approx(1.0, abs=0.005)


def test_pain_23_padding_enters_the_statistics():
    """pytorch#70529, pytorch#25910, pytorch#81985, tensorflow#30161."""
    lengths = torch.tensor([10, 3, 5, 2])
    x = torch.randn(4, 10, 6) + 2
    mask = torch.arange(10) < lengths[:, None]
    padded = (x * mask[..., None]).transpose(1, 2)
    norm = nn.BatchNorm1d(6)
    recalibrate(norm, [padded])
    assert norm.running_mean.mean().item() == pytest.approx(x[mask].mean().item() / 2, rel=1e-4)  # half is padding
    recalibrate(norm, [x[mask]])
    torch.testing.assert_close(norm.running_mean, x[mask].mean(0))
    for task in ("speech", "text-encoder", "recurrent", "image-classification", "tabular"):
        assert recommend(task, batch_size=64, padded=True).layer == "LayerNorm"


def test_pain_23_a_mask_keeps_padding_out_of_the_statistics():
    """pytorch#70529, pytorch#81985: half of the batch is padding, which halves the mean and inflates the variance."""
    lengths = torch.tensor([10, 3, 5, 2])
    mask = torch.arange(10) < lengths[:, None]
    x = (torch.randn(4, 6, 10) * 0.8 + 2) * mask[:, None]
    real = x.transpose(1, 2)[mask]  # (20, 6)
    plain, masked = nn.BatchNorm1d(6, momentum=1.0), layers.MaskedBatchNorm1d(6, momentum=1.0)
    assert masked.load_state_dict(plain.state_dict())
    plain(x)
    y = masked(x, mask)
    assert plain.running_mean.mean().item() == pytest.approx(real.mean().item() / 2, rel=1e-4)
    assert (plain.running_var > 1.3 * real.var(0)).all()
    torch.testing.assert_close(masked.running_mean, real.mean(0))
    torch.testing.assert_close(masked.running_var, real.var(0))
    torch.testing.assert_close(y.transpose(1, 2)[mask], nn.BatchNorm1d(6)(real))
    assert not y.transpose(1, 2)[~mask].any()
    more = F.pad(x, (0, 30))  # more padding changes nothing
    torch.testing.assert_close(masked.train()(more, F.pad(mask, (0, 30)))[..., :10], y)


def test_pain_24_weight_decay_on_norm_parameters():
    """transformers#4832, bert#289, yolov5#4104."""
    model = nn.Sequential(nn.Linear(6, 16), nn.LayerNorm(16), nn.Linear(16, 3))
    facts = amiss(model, "decay-on-norm", torch.optim.AdamW(model.parameters(), weight_decay=0.01))
    assert [(fact.module, fact.value) for fact in facts] == [("1", 0.01)]
    groups = [
        {"params": [p for p in model.parameters() if p.dim() < 2], "weight_decay": 0.0},
        {"params": [p for p in model.parameters() if p.dim() >= 2], "weight_decay": 0.01},
    ]
    assert amiss(model, "decay-on-norm", torch.optim.AdamW(groups)) == []
    assert "no weight decay" in recommend("language-model").decay


def test_pain_25_real_and_generated_samples_in_batches_of_their_own():
    """ganhacks#9 and #52, DCGAN-tensorflow#266 and #289, pytorch/examples#119, WassersteinGAN#40, dcgan.torch#19."""
    critic = net()
    real, generated = torch.randn(64, 6), torch.randn(64, 6) + 4
    with pytest.warns(UnequalBatchesWarning):
        layer = recalibrate(critic, [real, generated], inplace=False)["1"]
    assert layer.gap > 0.3  # two modes: most of the variance lies between the batches
    mixed = [torch.cat([real[:32], generated[:32]]), torch.cat([real[32:], generated[32:]])]
    assert recalibrate(critic, mixed).layers[0].gap < 0.1
    sampled = [copy.deepcopy(critic) for _ in range(2)]
    for model, batches in zip(sampled, ([real], [generated]), strict=True):
        recalibrate(model, batches)
    first, second = (model.eval()(generated) for model in sampled)
    assert (first - second).abs().max() > 0.5  # one net, two outputs: evaluation depends on whose statistics it holds
    for batch_size in (1, 64):
        assert "Batch" not in recommend("gan-critic", batch_size=batch_size, gradient_penalty=True).layer
    assert "Batch" not in recommend("gan-critic", batch_size=64).layer
