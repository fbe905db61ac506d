"""What a measurement leaves untouched, what it refuses, and how it sees batches, dropout and memory."""

import copy
import random
import subprocess
import sys

import numpy as np
import pytest
import torch
from curvature_nets import dense_hessian, loss, made
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trimtab
from trimtab import Setup
from trimtab.curvature import (
    CurvatureError,
    conditioning,
    density,
    eigenvalues,
    fisher,
    ggn,
    ggn_trace,
    hessian,
    problem,
    scale_free_sharpness,
    trace,
)
from trimtab.curvature.memory import saved_bytes
from trimtab.curvature.retention import Retention, retention_of


def state(model, optimizer=None):
    """Everything that must not move, to the bit."""
    tensors = {n: t.detach().clone() for n, t in (*model.named_parameters(), *model.named_buffers())}
    grads = {n: None if p.grad is None else p.grad.clone() for n, p in model.named_parameters()}
    modes = {n: (m.training, getattr(m, "track_running_stats", None)) for n, m in model.named_modules()}
    hooks = {
        n: (len(m._forward_hooks), len(m._forward_pre_hooks), len(m._backward_hooks)) for n, m in model.named_modules()
    }
    asks = {n: p.requires_grad for n, p in model.named_parameters()}
    randoms = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()
    return tensors, grads, modes, hooks, asks, randoms


def same(a, b):
    if isinstance(a, torch.Tensor):
        return a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, np.ndarray):
        return np.array_equal(a, b)
    if isinstance(a, dict):
        return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, tuple):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b


class Busy(nn.Module):
    """Batch norm, dropout, an activation in place, an unused layer, and one submodule in evaluation mode."""

    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(
            nn.Linear(24, 12), nn.BatchNorm1d(12), nn.ReLU(inplace=True), nn.Dropout(0.3), nn.Linear(12, 5)
        )
        self.left = nn.Linear(2, 2)
        self.left.eval()

    def forward(self, x):
        return self.net(x)


def busy():
    torch.manual_seed(3)
    model = Busy()
    x, y = torch.randn(16, 24), torch.randint(5, (16,))
    loss(model, (x, y)).backward()
    return model, [(x, y), (x[:6], y[:6])]


CALLS = {
    "eigenvalues": lambda m, f, b, **o: eigenvalues(hessian(m, f, b, **o), 2),
    "recompute": lambda m, f, b, **o: eigenvalues(hessian(m, f, b, method="recompute", **o), 2),
    "gauss-newton": lambda m, f, b, **o: trace(ggn(m, f, b, **o), 12),
    "fisher": lambda m, f, b, **o: density(fisher(m, f, b, **o), 5, 2),
    "ggn_trace": lambda m, f, b, **o: ggn_trace(m, f, b, **o),
    "conditioning": lambda m, f, b, **o: conditioning(hessian(m, f, b, **o), 3),
    "scale-free": lambda m, f, b, **o: scale_free_sharpness(m, f, b, **o),
    "blocks": lambda m, f, b, **o: {n: eigenvalues(o_, 1) for n, o_ in hessian(m, f, b, **o).blocks().items()},
    "float64": lambda m, f, b, **o: hessian(m, f, b, dtype=torch.float64, **o).symmetry(),
}


@pytest.mark.parametrize(
    ("name", "mode"), [(n, m) for n in CALLS for m in ("train", "eval") if (n, m) != ("scale-free", "eval")]
)
def test_nothing_of_the_users_moves(name, mode):
    call = CALLS[name]
    model, batches = busy()
    before, inputs = state(model), copy.deepcopy(batches)
    torch.manual_seed(11)
    randoms = state(model)[-1]
    call(model, loss, batches, mode=mode, seed=0)
    after = state(model)
    assert same(before[:-1], after[:-1])
    assert same(randoms, after[-1])
    assert all(same(a, b) for a, b in zip(batches, inputs, strict=True))


@pytest.mark.parametrize("call", CALLS.values(), ids=CALLS)
@pytest.mark.parametrize("fail_at", [1, 2, 3])
def test_nothing_of_the_users_moves_when_something_fails_inside(call, fail_at):
    """The loss fails at its first call, when it is checked to repeat, or in the measurement itself."""
    model, batches = busy()
    before = state(model)
    calls = 0

    def failing(model, batch):
        nonlocal calls
        calls += 1
        torch.rand(1)
        np.random.rand()
        if calls >= fail_at:
            raise RuntimeError("the user's own")
        return loss(model, batch)

    with pytest.raises(RuntimeError, match="the user's own"):
        call(model, failing, batches, seed=0)
    assert same(before, state(model))
    assert torch.backends.mha.get_fastpath_enabled()
    assert torch.backends.cuda.flash_sdp_enabled()


def test_an_operator_is_a_snapshot():
    """Retained or made anew: the model may train on between two products."""
    for method in ("retained", "recompute"):
        model, batches = made("batch norm")
        h = hessian(model, loss, batches, method=method)
        v = torch.randn(h.shape[0], dtype=torch.float64)
        first = h @ v
        with torch.no_grad():
            for tensor in (*model.parameters(), batches[0][0]):
                tensor.mul_(1.5)
        assert torch.equal(h @ v, first)


def test_it_works_in_the_callers_no_grad_and_inference_mode():
    model, batches = made("batch norm")
    h = hessian(model, loss, batches)
    v = torch.randn(h.shape[0], dtype=torch.float64)
    for context in (torch.no_grad(), torch.inference_mode()):
        with context:
            assert torch.equal(hessian(model, loss, batches) @ v, h @ v)


def test_a_setup_gives_its_first_batches_and_its_loader_does_not_move():
    torch.manual_seed(0)
    data = TensorDataset(torch.randn(40, 24), torch.randint(5, (40,)))
    generator = torch.Generator().manual_seed(5)
    loader = DataLoader(data, batch_size=16, shuffle=True, generator=generator)
    model = nn.Sequential(nn.Linear(24, 8), nn.Tanh(), nn.Linear(8, 5))
    setup = Setup(model, torch.optim.SGD(model.parameters(), 0.1), lambda: loader, loss)
    before, globally = generator.get_state(), torch.get_rng_state()
    one = trimtab.curvature.hessian(setup)
    assert (len(one.problem.batches), one.problem.samples) == (1, 16)
    assert torch.equal(one.problem.batches[0][0], problem(setup).batches[0][0]), "the same one each time"
    assert problem(setup, batches=9).samples == 40, "a pass has no more"
    assert problem(setup, batches=9).shares == pytest.approx((0.4, 0.4, 0.2))
    assert problem(setup, batches=loader).samples == 40
    assert problem(model, loss, lambda: loader).samples == 40
    assert torch.equal(generator.get_state(), before)
    assert torch.equal(torch.get_rng_state(), globally)
    assert next(iter(loader))[0].shape == (16, 24)


def test_value_and_gradient_anywhere():
    model, batches = made("layer norm", sizes=(8, 4))
    own = problem(model, loss, batches)
    direct = (8 * loss(model, batches[0]) + 4 * loss(model, batches[1])) / 12
    gradient = torch.cat([g.reshape(-1) for g in torch.autograd.grad(direct, list(model.parameters()))])
    value, found = own.gradient()
    assert value == pytest.approx(float(direct.detach()), rel=1e-14)
    assert torch.allclose(found, gradient, rtol=1e-12, atol=1e-15)
    there = own.vector() + 0.1 * torch.randn(own.size, dtype=torch.float64)
    value, found = own.gradient(there)
    assert own.value(there) == pytest.approx(value, rel=1e-14)
    v = torch.randn(own.size, dtype=torch.float64)
    slope = (own.value(there + 1e-5 * v) - own.value(there - 1e-5 * v)) / 2e-5
    assert slope == pytest.approx(float(found @ v), rel=1e-6)
    assert torch.equal(own.vector(own.pieces(there)), there)
    assert [layer.name for layer in own.layers] == ["0", "1", "3", "4", "6"]


def test_dropout_is_refused_or_frozen():
    model, batches = busy()
    with pytest.raises(
        CurvatureError, match=r"loss is random.*dropout in training mode \(net\.3\).*seed=0.*mode=\"eval\""
    ):
        hessian(model, loss, batches)
    hessian(model, loss, batches, mode="eval")
    h = hessian(model, loss, batches, seed=1, method="recompute")
    v = torch.randn(h.shape[0])
    assert torch.equal(h @ v, h @ v)
    assert not torch.equal(h @ v, hessian(model, loss, batches, seed=2) @ v)
    assert "frozen by seed 1" in repr(h)
    assert h.symmetry() <= 1e-6


def test_batch_statistics_belong_to_each_batch():
    model, batches = made("batch norm", sizes=(24, 7))
    truth = dense_hessian(model, batches, "train")
    h = hessian(model, loss, batches)
    v = torch.randn(h.shape[0], dtype=torch.float64)
    assert float((h @ v - truth @ v).norm() / (truth @ v).norm()) <= 1e-10


def test_importing_it_needs_no_scipy():
    program = "import sys, trimtab.curvature; sys.exit('scipy' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True)


# ---------------------------------------------------------------------------------------------------- refused


def bad(match, model=None, loss=loss, batches=None, make=hessian, **options):
    own, its = made("layer norm", torch.float32)
    with pytest.raises(CurvatureError, match=match):
        make(own if model is None else model, loss, its if batches is None else batches, **options)


def test_bad_losses():
    count = [0.0]

    def counting(model, batch):
        count[0] += 1
        return loss(model, batch) * (1 + 0.1 * count[0])

    other = made("layer norm", torch.float32)[0]
    bad("loss is not deterministic: .* keeps something from call to call", loss=counting)
    bad(
        "loss is random: .* the model or the loss function draws random numbers",
        loss=lambda m, b: loss(m, b) + torch.rand(()),
    )
    bad(
        r"loss must give a scalar tensor, but it gave a tensor of shape \(24, 5\); reduce it with .mean\(\)",
        loss=lambda m, b: m(b[0]),
    )
    bad("loss must give a scalar tensor, but it gave a float", loss=lambda m, b: loss(m, b).item())
    bad("loss does not depend on any chosen parameter", loss=lambda m, b: loss(m, b).detach())
    bad("loss does not depend on any chosen parameter|depends on none", loss=lambda m, b: loss(other, b))
    bad("loss is nan on the first batch", loss=lambda m, b: loss(m, b) * float("nan"))
    bad("loss must give a real number", loss=lambda m, b: m(b[0]).argmax())
    bad("loss must be a function", loss=3)
    bad("a model needs its loss and batches", loss=None)


def test_bad_models():
    bad("the model has no parameters to differentiate by: it has none", model=nn.ReLU())
    bad("none asks for a gradient", model=nn.Linear(24, 5).requires_grad_(False))
    bad("0.weight has no value yet", model=nn.Sequential(nn.LazyLinear(5)))
    model = nn.Linear(24, 5)
    with torch.no_grad():
        model.weight[0, 0] = float("nan")
    bad("parameter weight holds NaN or infinity", model=model)
    with pytest.raises(CurvatureError, match=r"a trimtab.Setup or a torch.nn.Module is needed, but it is a int"):
        hessian(3)
    bad(r"parameters names 'nine', but the model has neither .* it has 0\.weight", parameters=["nine"])
    bad(r"parameters must be a list of names, but it is a str; write parameters=\['0'\]", parameters="0")
    bad("parameters is empty", parameters=[])


def test_bad_batches():
    x, y = made("layer norm", torch.float32)[1][0]
    bad(r"but it is a tuple; write batches=\[batch\]", batches=(x, y))
    bad("batches must hold at least one batch", batches=[])
    bad("one-shot iterator", batches=iter([(x, y)]))
    bad("give weights=", batches=[{"x": x, "y": y[:3]}] * 2, loss=lambda m, b: loss(m, (b["x"], y)))
    bad("weights must hold one number a batch, 1, but it holds 2", weights=[1, 2])
    bad("weights must be numbers from 0 on", weights=[-1.0])
    bad('weights belong to reduction="mean"', weights=[1.0], reduction="sum")
    bad("mode must be one of 'train', 'eval'", mode="test")
    bad("method must be one of", method="graph")
    bad("dtype must be torch.float32 or torch.float64", dtype=torch.float16)
    model, _ = made("batch norm", torch.float32)
    bad(
        r'one value per channel in batch 1, .*mode="eval"',
        model=model,
        batches=[(x, y), (x[:1], y[:1])],
        make=lambda *a, **o: hessian(*a, **o).symmetry(),
    )
    bad("one value per channel in batch 0", model=model, batches=[(x[:1], y[:1])])
    bad(
        "a product with the operator is not finite",
        batches=[(x, y), (x * float("inf"), y)],
        make=lambda *a, **o: eigenvalues(hessian(*a, **o)),
    )


def test_bad_questions():
    model, batches = made("layer norm")
    h = hessian(model, loss, batches)
    for call, match in (
        (lambda: eigenvalues(h, 0), "k must be a whole number of at least 1, but it is 0"),
        (lambda: eigenvalues(h, 1, 2.0), "tol must be a number between 0 and 1"),
        (lambda: eigenvalues(h, which="max"), "which must be one of 'LM', 'LA', 'SA'"),
        (lambda: trace(h, 3), "products must be a whole number of at least 6"),
        (lambda: trace(h, method="mean"), "method must be one of"),
        (lambda: density(h, 0), "steps must be"),
        (lambda: problem(model, nn.CrossEntropyLoss(), batches), "it is a CrossEntropyLoss, which compares outputs"),
        (lambda: problem(model, loss, batches, parameters=3), "parameters must be a list of names, but it is a int"),
        (
            lambda: problem(model, loss, batches, parameters=list(model.parameters())),
            "parameters must be a list of names, but it holds a tensor of shape",
        ),
        (lambda: eigenvalues(model), r"operator must be one of hessian\(...\), .* but it is a Sequential; make one"),
        (lambda: density(h.problem), "operator must be one of .* but it is a Problem"),
        (lambda: trace(None), "operator must be one of .* but it is None"),
        (lambda: conditioning("h"), "operator must be one of .* but it is a str"),
        (
            lambda: problem(model, loss, batches, seed="0"),
            "seed must be a whole number from 0 to 2147483647, but it is '0'",
        ),
        (lambda: problem(model, loss, batches, seed=-1), "seed must be a whole number from 0"),
        (lambda: eigenvalues(h, seed=0.5), "seed must be a whole number from 0"),
        (lambda: density(h, seed=None), "seed must be a whole number from 0"),
        (lambda: trace(h, seed="0"), "seed must be a whole number from 0"),
        (lambda: conditioning(h, seed=-1), "seed must be a whole number from 0"),
        (lambda: h.block("nine"), "'nine' is neither"),
        (
            lambda: h @ torch.zeros(3),
            r"a real vector \(1259,\) or a matrix \(1259, k\) is needed, but it is a tensor of shape \(3,\)",
        ),
        (lambda: h.problem.pieces(torch.zeros(3)), r"a real vector of shape \(1259,\) is needed"),
        (
            lambda: h @ torch.zeros(1259, dtype=torch.complex128),
            r"it is a tensor of shape \(1259,\) of torch.complex128",
        ),
        (lambda: h.problem.pieces(torch.zeros(1259) * 1j), "of torch.complex64"),
        (
            lambda: hessian(nn.Linear(200, 60), lambda m, b: m(b).square().mean(), [torch.ones(2, 200)]).dense(),
            "too large",
        ),
    ):
        with pytest.raises(CurvatureError, match=match):
            call()
    with pytest.raises(TypeError, match="a problem has its loss"):
        hessian(h.problem, mode="eval")


def test_losses_that_cannot_be_cut_at_the_outputs():
    bad("loss is linear in the outputs", loss=lambda m, b: m(b[0]).mean(), make=lambda *a: ggn(*a).symmetry())
    bad(
        "loss uses parameters of the model beside",
        loss=lambda m, b: loss(m, b) + m[0].weight.square().sum(),
        make=lambda *a: ggn(*a).symmetry(),
    )
    bad("does not call the model", loss=lambda m, b: loss(m[0:7], b), make=lambda *a: fisher(*a).symmetry())
    model = nn.Linear(24, 24)
    bad(
        "feeds the model with its own outputs",
        model=model,
        loss=lambda m, b: loss(lambda x: m(m(x)), b),
        make=lambda *a: ggn(*a).symmetry(),
    )


# ---------------------------------------------------------------------------------------------------- memory


def test_the_graph_is_kept_where_memory_allows(monkeypatch):
    model, batches = made("batch norm", torch.float32, sizes=(24, 12))
    own = problem(model, loss, batches)
    decided = retention_of(own)
    assert decided.method == "retained"
    assert decided.estimate == pytest.approx(1.5 * decided.one_batch)
    monkeypatch.setattr("trimtab.curvature.retention.available_bytes", lambda device: int(1.9 * decided.estimate))
    h = hessian(model, loss, batches)
    assert h.retention.method == "recompute"
    assert "graphs made anew for each product" in repr(h)
    monkeypatch.setattr("trimtab.curvature.retention.available_bytes", lambda device: int(2.1 * decided.estimate))
    assert hessian(model, loss, batches).retention.method == "retained"
    assert isinstance(hessian(model, loss, batches, method="recompute").retention, Retention)


@pytest.mark.parametrize("name", ["batch norm", "layer norm", "attention", "batch norm 2d"])
def test_the_estimate_covers_what_the_graph_keeps(name):
    """Storages that the graph of a gradient saves, each once, against three times those of a forward pass."""
    model, batches = made(name, torch.float32, sizes=(256,))
    own = problem(model, loss, batches)
    kept = {}

    def pack(tensor):
        kept[tensor.untyped_storage().data_ptr()] = (
            tensor,
            tensor.untyped_storage().nbytes(),
        )  # held: no address comes twice
        return tensor

    point = own.variables()
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
        torch.autograd.grad(own.batch_loss(0, point), point, create_graph=True)
    total = sum(size for _, size in kept.values())
    assert total <= retention_of(own).estimate <= 4 * total


def test_ctrl_c_as_random_states_are_put_back_waits_until_they_are(monkeypatch):
    model, batches = busy()
    before = torch.get_rng_state(), random.getstate(), np.random.get_state()[1].copy()
    put_back, came = random.setstate, []

    def interrupted(state):
        if not came and random.getstate() != state:
            came.append(True)
            raise KeyboardInterrupt
        put_back(state)

    monkeypatch.setattr(random, "setstate", interrupted)
    with pytest.raises(KeyboardInterrupt):
        problem(model, loss, batches, mode="eval")
    assert torch.equal(torch.get_rng_state(), before[0])
    assert random.getstate() == before[1]
    assert np.array_equal(np.random.get_state()[1], before[2])


def test_ctrl_c_as_the_counting_of_memory_ends_leaves_other_graphs_alone(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    hooks = torch.autograd.graph.saved_tensors_hooks(None, None)
    take_away = type(hooks).__exit__
    with monkeypatch.context() as patch:
        patch.setattr(torch.autograd.graph.saved_tensors_hooks, "__exit__", interrupted)
        with pytest.raises(KeyboardInterrupt), saved_bytes():
            pass
    try:
        x = torch.tensor(3.0, requires_grad=True)
        (x * x).backward()
    finally:
        take_away(hooks, None, None, None)
    assert x.grad == 6
