"""Initializers keep the gradient or the variance in any architecture, and touch nothing else."""

import copy
import math

import pytest
import torch
from sklearn.datasets import load_digits
from torch import nn
from torch.nn.functional import gelu, max_pool2d

from trimtab.errors import NormalizationError
from trimtab.norms import Residual
from trimtab.propagation import (
    PropagationError,
    activation,
    backward_log_variance,
    band,
    critical_,
    length_map,
    lsuv_,
    mean_derivative_squared,
    second_moment,
)

ACTIVATIONS = {"tanh": nn.Tanh, "gelu": nn.GELU, "silu": nn.SiLU, "selu": nn.SELU, "relu": nn.ReLU}
DEPTH, WIDTH = 30, 256


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


def mlp(name, depth=DEPTH, width=WIDTH):
    layers = [layer for _ in range(depth) for layer in (nn.Linear(width, width), ACTIVATIONS[name]())]
    return nn.Sequential(*layers[:-1])


def layers(prediction):
    """The sites of linear maps, in the order in which they ran."""
    return [site for site in prediction if site.kind.startswith(("Linear", "Conv"))]


def log_ratio(prediction):
    """Log of first over last layer's measured squared gradient."""
    sites = layers(prediction)
    return math.log(sites[0].backward_measured / sites[-1].backward_measured)


def stays_in_its_bands(prediction):
    """Whether signal and gradient are measured within what `predict` tolerates, at every layer."""
    return all(
        abs(math.log(measured / predicted)) < math.log(factor)
        for site in layers(prediction)
        for predicted, measured, factor in (
            (site.forward, site.forward_measured, site.forward_tolerance),
            (site.backward, site.backward_measured, site.backward_tolerance),
        )
    )


# ---------------------------------------------------------------------------------------------------- deep plain nets


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_critical_keeps_the_gradient_over_thirty_layers(name, orthogonal):
    phi, report = activation(name), critical_(mlp(name), torch.randn(64, WIDTH), orthogonal=orthogonal)
    start = layers(report.after)[0].forward_measured
    low, high = band(0.0, (DEPTH - 1) * backward_log_variance(phi, WIDTH, start))
    assert low < log_ratio(report.after) < high
    assert (
        abs(log_ratio(report.after)) < 1.0
    )  # the batch's examples share the draw, and gains answer to what is measured
    assert stays_in_its_bands(report.after)


@pytest.mark.parametrize("orthogonal", [True, False])
@pytest.mark.parametrize("name", ACTIVATIONS)
def test_lsuv_keeps_the_variance_and_the_gradient_goes_where_theory_says(name, orthogonal):
    phi, report = activation(name), lsuv_(mlp(name), torch.randn(64, WIDTH), orthogonal=orthogonal)
    for layer in layers(report.after):
        assert layer.forward_measured == pytest.approx(1.0, abs=0.05)
    if name not in {"gelu", "silu"}:  # from q = 1 they run away, where weights made for this batch hold them
        assert stays_in_its_bands(report.after)
    rate = mean_derivative_squared(phi, 1.0) / second_moment(phi, 1.0)
    low, high = band((DEPTH - 1) * math.log(rate), (DEPTH - 1) * backward_log_variance(phi, WIDTH, 1.0))
    assert low < log_ratio(report.after) < high


def test_the_default_of_torch_does_not():
    report = critical_(mlp("tanh"), torch.randn(8, WIDTH))
    assert log_ratio(report.before) < math.log(1e-10)
    assert [site.odd for site in layers(report.before)].count("prediction") > 10
    assert not report.after.odd


def test_a_bias_leads_tanh_to_its_fixed_point():
    """sigma_b^2 = 0.05: sigma_w^2 = 1.760955 at q = 0.57005 (the published 1.76)."""
    report = critical_(mlp("tanh", width=512), torch.randn(32, 512), bias_var=0.05, start_q=0.57, orthogonal=False)
    assert report.changes[-1].gain ** 2 == pytest.approx(1.761, abs=0.15)
    assert layers(report.after)[-1].forward_measured == pytest.approx(0.570, abs=0.15)
    model = mlp("tanh", width=512)
    critical_(model, bias_var=0.05)
    assert float(model[0].bias.detach().var()) == pytest.approx(0.05, rel=0.3)


def test_without_a_batch_the_modules_order_counts():
    gains = {}
    for name in ACTIVATIONS:
        report = critical_(mlp(name, 12))
        gains[name] = [change.gain for change in report.changes]
        assert report.before is report.after is None
        assert not report.notes
    phi, q = activation("tanh"), 1.0
    assert gains["tanh"][0] == pytest.approx(1.0)
    for gain in gains["tanh"][1:]:
        weight_var = 1 / mean_derivative_squared(phi, q)
        assert gain == pytest.approx(math.sqrt(weight_var), rel=1e-6)
        q = length_map(phi, q, weight_var)
    assert gains["relu"][1:] == pytest.approx([math.sqrt(2)] * 11)
    measured = critical_(mlp("tanh", 12), torch.randn(256, WIDTH))
    assert gains["tanh"] == pytest.approx([change.gain for change in measured.changes], rel=0.03)


def test_batch_norm_starts_the_length_anew():
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 8))
    expected = mean_derivative_squared(activation("tanh"), 1.0) ** -0.5
    assert critical_(net)["3.weight"].gain == pytest.approx(expected)
    report = critical_(net, torch.randn(64, 8))
    assert report["3.weight"].gain == pytest.approx(expected, rel=1e-4)
    assert "a norm follows" in report["0.weight"].note


# ---------------------------------------------------------------------------------------------------- any architecture


class Functional(nn.Module):
    """Activations as functions, one made of two operations; a transposed and a grouped convolution; pooling."""

    def __init__(self):
        super().__init__()
        self.first = nn.Conv2d(3, 16, 3, padding=1)
        self.grouped = nn.Conv2d(16, 32, 3, padding=1, groups=4)
        self.up = nn.ConvTranspose2d(32, 16, 4, stride=2, padding=1)
        self.head = nn.Linear(16 * 64, 10, bias=False)

    def forward(self, x):
        h = self.first(x)
        h = self.grouped(h * torch.sigmoid(h))
        h = self.up(torch.relu(max_pool2d(h, 2)))
        return self.head(gelu(h).flatten(1))


def test_a_forward_of_ones_own():
    report = critical_(Functional(), torch.randn(32, 3, 8, 8), start_q=1.0)
    acts = {change.name: change.activation for change in report.changes}
    assert acts == {"first.weight": "", "grouped.weight": "sigmoid mul", "up.weight": "relu", "head.weight": "gelu"}
    assert layers(report.after)[0].forward_measured == pytest.approx(1.0, abs=0.1)  # padding and all
    silu = mean_derivative_squared(activation("silu"), layers(report.after)[0].forward_measured) ** -0.5
    assert report["grouped.weight"].gain == pytest.approx(silu, rel=1e-3)
    assert report["up.weight"].gain == pytest.approx(math.sqrt(2), rel=1e-3)
    lsuv = lsuv_(Functional(), torch.randn(32, 3, 8, 8))
    assert all(layer.forward_measured == pytest.approx(1.0, abs=0.1) for layer in layers(lsuv.after))
    blind = critical_(Functional())
    assert "Functional.forward" in blind.notes[0]
    assert "give a batch" in str(blind)


def test_orthogonal_kernels_and_matrices():
    net = Functional()
    critical_(net, torch.randn(4, 3, 8, 8))
    for group in net.grouped.weight.detach().double().reshape(4, 8, -1):
        gram = group @ group.T
        torch.testing.assert_close(gram, torch.eye(8).double() * gram[0, 0], atol=1e-5, rtol=1e-5)
    gram = net.head.weight.detach().double() @ net.head.weight.detach().double().T
    torch.testing.assert_close(gram, torch.eye(10).double() * gram[0, 0], atol=1e-5, rtol=1e-5)


class Block(nn.Module):
    def __init__(self, width, norm):
        super().__init__()
        self.norm = nn.LayerNorm(width) if norm else nn.Identity()
        self.inner, self.outer = nn.Linear(width, width), nn.Linear(width, width)

    def forward(self, x):
        return x + self.outer(torch.relu(self.inner(self.norm(x))))


@pytest.mark.parametrize("norm", [True, False])
def test_residual_branches_of_ones_own_are_scaled(norm):
    net = nn.Sequential(nn.Linear(64, 64), *(Block(64, norm) for _ in range(16)))
    report = critical_(net, torch.randn(32, 64))
    assert "1/sqrt(16)" in report["5.outer.weight"].note
    assert report["5.outer.weight"].gain == pytest.approx(math.sqrt(2) / 4, rel=1e-3)
    output = net(torch.randn(256, 64)).detach()
    assert 1.3 < float(output.square().mean()) < math.e * 1.2
    plain = critical_(net, torch.randn(32, 64), scale_residual=False)
    assert plain["5.outer.weight"].gain == pytest.approx(math.sqrt(2), rel=1e-3)


@pytest.mark.parametrize("with_batch", [True, False])
@pytest.mark.parametrize(
    ("placement", "more", "factor"),
    [
        ("pre", {"norm": True}, 0.5),
        ("post", {"norm": True}, 1.0),
        ("sandwich", {"norm": True}, 1.0),
        ("rezero", {}, 1.0),
        ("scaled", {"depth": 4}, 1.0),
        ("deep", {"norm": True, "skip_scale": 2.0}, 1 / (2 * math.sqrt(2))),
    ],
)
def test_residual_blocks_of_norms_are_known(placement, more, factor, with_batch):
    if more.get("norm"):
        more = more | {"norm": lambda: nn.LayerNorm(16)}
    branches = [nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 16)) for _ in range(4)]
    net = nn.Sequential(nn.Linear(16, 16), *(Residual(b, placement, **more) for b in branches), nn.Linear(16, 4))
    report = critical_(net, torch.randn(64, 16)) if with_batch else critical_(net)
    assert report["2.branch.2.weight"].gain == pytest.approx(math.sqrt(2) * factor, rel=1e-3)
    assert report["2.branch.2.weight"].note or placement == "post"


def test_a_projected_skip_is_a_join_and_a_batch_norm_at_the_end_is_told():
    class Projected(nn.Module):
        def __init__(self):
            super().__init__()
            self.stem, self.skip = nn.Conv2d(3, 8, 3), nn.Conv2d(8, 8, 1, stride=2)
            self.a, self.b = nn.Conv2d(8, 8, 3, stride=2, padding=1), nn.Conv2d(8, 8, 3, padding=1)
            self.norm = nn.BatchNorm2d(8)

        def forward(self, x):
            x = self.stem(x)
            return self.skip(x) + self.norm(self.b(torch.relu(self.a(x))))

    report = critical_(Projected(), torch.randn(8, 3, 10, 10))
    assert "ends in a norm" in report["b.weight"].note
    assert not report["skip.weight"].note


def test_a_transformer():
    layer = nn.TransformerEncoderLayer(32, 4, 64, batch_first=True, norm_first=True)
    net = nn.TransformerEncoder(layer, 4, enable_nested_tensor=False)
    report = critical_(net, torch.randn(8, 5, 32))
    assert len(report.changes) == 16
    assert not report.left
    assert "1/sqrt(8)" in report["layers.3.linear2.weight"].note
    assert "1/sqrt(8)" in report["layers.3.self_attn.out_proj.weight"].note
    assert report["layers.0.linear2.weight"].activation == "relu"


class Recurrent(nn.Module):
    """An embedding tied to the output, an LSTM, a cell of one's own, one matrix kept outside of a layer."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(20, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.w, self.u = nn.Linear(16, 16), nn.Linear(16, 16)
        self.free = nn.Parameter(torch.randn(16, 16))
        self.out = nn.Linear(16, 20)
        self.out.weight = self.embed.weight

    def forward(self, x):
        x, _ = self.lstm(self.embed(x))
        h = x.new_zeros(x.shape[0], 16)
        for t in range(x.shape[1]):
            h = torch.tanh(self.w(x[:, t]) + self.u(h))
        return self.out(h @ self.free)


def test_what_is_not_an_initializers_business_is_left_and_named():
    net = Recurrent()
    net.w.weight.requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    for initializer in (critical_, lsuv_):
        report = initializer(net, torch.randint(0, 20, (8, 5)))
        left = dict(report.left)
        assert left["w.weight"] == "frozen"
        assert "embed" in left["embed.weight"]
        assert "tied" in left["embed.weight"]
        assert "recurrent" in left["lstm.weight_hh_l0"]
        changed = [name for name, value in net.state_dict().items() if not torch.equal(value, before[name])]
        assert set(changed) == {"u.weight", "u.bias", "free"}
        assert report["free"].activation == "tanh"
        assert "left alone: w.weight (frozen)" in str(report)


def test_a_module_that_runs_several_times_is_set_once():
    shared = nn.Linear(32, 32)
    net = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), shared)
    report = lsuv_(net, torch.randn(64, 32))
    assert [change.name for change in report.changes] == ["0.weight"]
    assert float(net[0](torch.randn(512, 32)).detach().var()) == pytest.approx(1.0, abs=0.1)


def test_weights_that_parametrizations_compute_and_unused_ones_are_left():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first = nn.utils.parametrizations.weight_norm(nn.Linear(4, 4))
            self.last, self.spare = nn.Linear(4, 4), nn.Linear(4, 4)

        def forward(self, x):
            return self.last(self.first(x))

    report = critical_(Net(), torch.randn(8, 4))
    reasons = dict(report.left)
    assert [change.name for change in report.changes] == ["last.weight"]
    assert "no linear map" in reasons["spare.weight"]
    assert sum("parametrization" in reason for reason in reasons.values()) == 2


# ---------------------------------------------------------------------------------------------------- options


def test_the_last_layer():
    x = torch.randn(16, WIDTH)
    plain, zero, kept = (mlp("relu", 4) for _ in range(3))
    assert critical_(plain, x, last_layer=0.1)["6.weight"].gain == pytest.approx(0.1 * math.sqrt(2))
    critical_(zero, x, last_layer=0.0)
    assert not zero[6].weight.any()
    old = kept[6].weight.clone()
    report = critical_(kept, x, last_layer=None)
    assert torch.equal(kept[6].weight, old)
    assert dict(report.left) == {"6.weight": "the last layer"}
    assert dict(critical_(kept, last_layer=None).left) == {"6.weight": "the last layer"}


@pytest.mark.parametrize("initializer", [critical_, lsuv_])
def test_with_a_generator_nothing_else_moves(initializer):
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Dropout(0.5), nn.ReLU(inplace=True), nn.Linear(8, 3))
    net.register_forward_hook(lambda *_: calls.append(1))
    calls = []
    buffers, state = {n: b.clone() for n, b in net.named_buffers()}, torch.get_rng_state()
    pointers = [p.data_ptr() for p in net.parameters()]
    x = torch.randn(16, 8)
    kept, state = x.clone(), torch.get_rng_state()
    first = initializer(net, x, generator=seeded())
    assert torch.equal(torch.get_rng_state(), state)
    assert torch.equal(x, kept)
    assert all(torch.equal(b, buffers[n]) for n, b in net.named_buffers())
    assert [p.data_ptr() for p in net.parameters()] == pointers
    assert all(p.grad is None and p.requires_grad for p in net.parameters())
    assert all(module.training for module in net.modules())
    assert not calls
    assert torch.equal(net[1].weight, torch.ones(8))
    weights = net[4].weight.clone()
    second = initializer(net, x, generator=seeded())
    assert torch.equal(net[4].weight, weights)
    assert [c.new_std for c in first.changes] == [c.new_std for c in second.changes]
    initializer(net, x, generator=seeded(1))
    assert not torch.equal(net[4].weight, weights)


def test_without_a_generator_the_global_one_gives_one_number():
    net = nn.Linear(4, 4)
    torch.manual_seed(3)
    critical_(net)
    after = torch.rand(2)
    torch.manual_seed(3)
    torch.randint(2**62, ())
    assert torch.equal(torch.rand(2), after)


def test_half_precision_and_mappings():
    class Named(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(64, 64, dtype=torch.bfloat16)

        def forward(self, *, signal):
            return {"out": self.layer(signal)}

    net = Named()
    report = lsuv_(net, {"signal": torch.randn(32, 64, dtype=torch.bfloat16)})
    assert net.layer.weight.dtype == torch.bfloat16
    assert layers(report.after)[0].forward_measured == pytest.approx(1.0, abs=0.05)


@pytest.mark.parametrize("initializer", [critical_, lsuv_])
def test_under_autocast_the_weights_are_found(initializer):
    class Cast(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(64, 64), nn.Linear(64, 64)

        def forward(self, x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return self.b(torch.relu(self.a(x)))

    report = initializer(Cast(), torch.randn(64, 64))
    assert report["b.weight"].gain == pytest.approx(math.sqrt(2), rel=0.1)
    assert layers(report.after)[0].forward_measured == pytest.approx(1.0, abs=0.1)


@pytest.mark.parametrize("mode", ["zeros", "circular", "reflect", "replicate"])
def test_padding_hides_no_activation(mode):
    layers = [nn.Conv2d(4, 4, 3, padding=1, padding_mode=mode) for _ in range(2)]
    report = critical_(nn.Sequential(layers[0], nn.ReLU(), layers[1]), torch.randn(8, 4, 6, 6))
    assert report["2.weight"].activation == "relu"
    assert report["2.weight"].gain == pytest.approx(math.sqrt(2), rel=1e-3)


def test_what_is_not_understood_is_named():
    class Odd(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 4)

        def forward(self, x):
            return self.b(torch.softmax(self.a(x), -1))

    assert "softmax" in critical_(Odd(), torch.randn(8, 8))["b.weight"].note


def test_the_report_prints():
    report = critical_(mlp("relu", 3), torch.randn(16, WIDTH), generator=seeded())
    text = str(report)
    assert text.splitlines()[0] == "critical_: orthogonal weights, chi_1 = 1 in each layer"
    table = text.partition("mean square ")[2].splitlines()
    assert [line.split()[0] for line in table[2:]] == ["signal", "signal", "gradient", "gradient"]
    assert [line.split()[1] for line in table[2:]] == ["0", "4"] * 2
    assert float(table[4].split()[6]) == pytest.approx(report.after["0"].backward_measured, rel=1e-2)
    assert report["2.weight"].new_std == pytest.approx(math.sqrt(2 / WIDTH), rel=1e-2)
    with pytest.raises(KeyError):
        report["nowhere"]


def test_bad_input_is_told_and_leaves_the_model_alone():
    net = mlp("relu", 3)
    before = copy.deepcopy(net.state_dict())
    for initializer in (critical_, lsuv_):
        with pytest.raises(PropagationError, match="finite"):
            initializer(net, torch.full((4, WIDTH), torch.nan))
    with pytest.raises(PropagationError, match="mean square 0"):
        critical_(net, torch.zeros(4, WIDTH))
    with pytest.raises(PropagationError, match="start_q"):
        critical_(net, torch.randn(4, WIDTH), bias_var=2.0)
    with pytest.raises(RuntimeError, match="shapes cannot"):
        lsuv_(net, torch.randn(4, 3))
    with pytest.raises(PropagationError, match="batch is None"):
        lsuv_(net, None)
    for empty, words in (
        ((), r"batch is \(\)"),
        ({}, "batch is a dict"),
        (torch.ones(0, WIDTH), "no example"),
        (torch.ones(2, WIDTH, device="meta"), "meta device"),
        (torch.full((4, WIDTH), torch.inf), "not finite everywhere"),
    ):
        for initializer in (critical_, lsuv_):
            with pytest.raises(PropagationError, match=words):
                initializer(net, empty)
    for lazy in (nn.LazyLinear(3), nn.Linear(2, 3, device="meta")):
        with pytest.raises(PropagationError, match="without values"):
            critical_(lazy, torch.randn(2, 2))
    with pytest.raises(NormalizationError, match="model is the class Linear"):
        critical_(nn.Linear)
    with pytest.raises(NormalizationError, match="generator is 3"):
        critical_(net, generator=3)
    with pytest.raises(NormalizationError, match="bias_var is -1"):
        critical_(net, bias_var=-1)
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())


@pytest.mark.parametrize("initializer", [critical_, lsuv_])
def test_where_nothing_can_be_predicted_the_weights_are_set_and_a_note_says_so(initializer):
    net = mlp("tanh", 3)
    net[2].weight.data.fill_(torch.nan)
    report = initializer(net, torch.randn(16, WIDTH))
    assert report.before is None
    assert "no prediction before: parameter 2.weight holds NaN" in str(report)
    assert not report.after.odd
    assert all(bool(p.isfinite().all()) for p in net.parameters())
    whole = nn.Linear(4, 4, dtype=torch.complex64)
    report = initializer(whole, torch.randn(8, 4, dtype=torch.complex64))
    assert dict(report.left) == {"weight": "its values are complex64"}
    assert "complex" in report.notes[0]


def test_a_frozen_net_is_left_and_foretold_all_the_same():
    net = mlp("tanh", 3).requires_grad_(False)
    before = copy.deepcopy(net.state_dict())
    report = critical_(net, torch.randn(16, WIDTH))
    assert not report.changes
    assert {reason for _, reason in report.left} == {"frozen"}
    assert all(math.isfinite(site.backward_measured) for site in layers(report.after))
    assert all(torch.equal(value, before[name]) for name, value in net.state_dict().items())
    assert not any(p.requires_grad for p in net.parameters())


def test_a_batch_of_one_sets_the_weights_too():
    for initializer in (critical_, lsuv_):
        report = initializer(mlp("relu", 4), torch.randn(1, WIDTH))
        assert len(report.changes) == 4
        assert "one sample" in report.after.notes[0]


def test_a_batch_that_does_not_vary_is_noted():
    report = lsuv_(nn.Linear(4, 1), torch.randn(1, 4))
    assert "does not vary" in report["weight"].note


@pytest.mark.slow
@pytest.mark.parametrize("initializer", [critical_, lsuv_])
def test_a_hundred_relu_layers_learn_the_digits(initializer):
    data = load_digits()
    inputs = torch.tensor(data.data, dtype=torch.float32)
    inputs, targets = (inputs - inputs.mean()) / inputs.std(), torch.tensor(data.target)
    layers = [layer for _ in range(98) for layer in (nn.Linear(128, 128), nn.ReLU())]
    net = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), *layers, nn.Linear(128, 10))
    initializer(net, inputs[:128], generator=seeded())
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-4)
    order = torch.randperm(len(inputs), generator=seeded())
    train, test = order[:1400], order[1400:]
    accuracy = 0.0
    for step in range(1200):
        rows = train[torch.randint(len(train), (128,))]
        loss = nn.functional.cross_entropy(net(inputs[rows]), targets[rows])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        if step % 50 == 49:
            with torch.no_grad():
                accuracy = float((net(inputs[test]).argmax(1) == targets[test]).float().mean())
            if accuracy > 0.92:
                break
    assert accuracy > 0.9
