"""Products against dense truths in float64, finite differences and peers."""

import pytest
import torch
from curvature_nets import NETS, dense_hessian, flat_gradient, jacobian, loss, made
from torch import nn
from torch.func import functional_call

from trimtab.curvature import fisher, ggn, hessian, problem

CASES = [(name, mode) for name in NETS for mode in ("train", "eval") if mode == "train" or name.startswith("batch")]


def error(found, truth):
    return float((found - truth).norm() / truth.norm())


@pytest.fixture(scope="module")
def truths():
    known = {}

    def truth(name, mode):
        if (name, mode) not in known:
            known[name, mode] = dense_hessian(*made(name), mode)
        return known[name, mode]

    return truth


@pytest.mark.parametrize(("name", "mode"), CASES)
@pytest.mark.parametrize("method", ["retained", "recompute"])
def test_products_equal_those_of_a_dense_hessian(name, mode, method, truths):
    model, batches = made(name)
    truth = truths(name, mode)
    h = hessian(model, loss, batches, mode=mode, method=method)
    v = torch.randn(h.shape[0], 3, dtype=torch.float64)
    assert h.retention.method == method
    assert error(h @ v, truth @ v) <= 1e-10
    assert h.symmetry() <= 1e-12


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_products_equal_finite_differences_of_the_gradient(name, mode):
    model, batches = made(name)
    h = hessian(model, loss, batches, mode=mode)
    v = torch.randn(h.shape[0], dtype=torch.float64)
    v /= v.norm()
    origin, gradient = flat_gradient(model, batches, mode)
    step = 1e-5
    difference = (gradient(origin + step * v)[1] - gradient(origin - step * v)[1]) / (2 * step)
    if name == "batch norm 2d" or name == "group norm":  # ReLU: a kink within the step is no second derivative
        assert error(h @ v, difference) <= 1e-4
    else:
        assert error(h @ v, difference) <= 1e-6


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize("normed", [nn.utils.parametrizations.weight_norm, nn.utils.weight_norm])
def test_weight_norm_is_right_though_the_double_backward_of_torch_is_not(normed):
    torch.manual_seed(0)
    model = nn.Sequential(normed(nn.Linear(4, 5).double()), nn.Tanh(), nn.Linear(5, 3).double())
    batch = torch.randn(8, 4, dtype=torch.float64), torch.randint(0, 3, (8,))
    with torch.no_grad():
        model(batch[0])
    asked = problem(model, lambda model, batch: nn.functional.cross_entropy(model(batch[0]), batch[1]), [batch])
    h = hessian(asked).dense()
    steps = 1e-5 * torch.eye(asked.size, dtype=torch.float64)
    origin = asked.vector()
    rows = [(asked.gradient(origin + step)[1] - asked.gradient(origin - step)[1]) / 2e-5 for step in steps]
    assert error(h, torch.stack(rows)) <= 1e-6
    assert error(h, h.T) <= 1e-12


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs, when they are imported
def test_what_others_build_on_is_wrong_through_layer_norm_and_this_is_not(truths):
    from curvlinops import HessianLinearOperator

    model, batches = made("layer norm")
    truth = truths("layer norm", "train")
    names, shapes = zip(*[(n, p.shape) for n, p in model.named_parameters()], strict=True)
    sizes = [shape.numel() for shape in shapes]

    def value(flat):
        pieces = {n: part.view(s) for n, part, s in zip(names, flat.split(sizes), shapes, strict=True)}
        return nn.functional.cross_entropy(functional_call(model, pieces, (batches[0][0],)), batches[0][1])

    flat = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    theirs = torch.func.hessian(value)(flat)
    assert error(theirs, truth) > 1e-3
    assert error(theirs, theirs.T) > 1e-3, "it is not even symmetric"

    v = torch.randn(len(flat), dtype=torch.float64)
    peer = HessianLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), batches)
    assert error(peer @ v, truth @ v) > 1e-3
    assert error(hessian(model, loss, batches) @ v, truth @ v) <= 1e-10


# ---------------------------------------------------------------------------------------------------- Gauss-Newton, Fisher


@pytest.mark.parametrize(("name", "mode"), CASES)
def test_gauss_newton_and_fisher_equal_their_definitions(name, mode):
    model, batches = made(name, sizes=(9, 4))
    truth_ggn, truth_fisher = 0, 0
    for x, y in batches:
        z, j = jacobian(model, x, mode)
        p = z.softmax(1)
        middle = torch.diag_embed(p) - p[:, :, None] * p[:, None, :]
        truth_ggn = truth_ggn + torch.einsum("nap,nab,nbq->pq", j, middle, j) / 13
        slopes = torch.einsum("nap,na->np", j, p - nn.functional.one_hot(y, 5))
        truth_fisher = truth_fisher + slopes.T @ slopes / 13
    v = torch.randn(len(truth_ggn), 2, dtype=torch.float64)
    for method in ("retained", "recompute"):
        assert error(ggn(model, loss, batches, mode=mode, method=method) @ v, truth_ggn @ v) <= 1e-10
        assert error(fisher(model, loss, batches, mode=mode, method=method) @ v, truth_fisher @ v) <= 1e-10


@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # theirs, when they are imported
def test_gauss_newton_equals_curvlinops_and_backpack():
    from backpack import backpack, extend
    from backpack.extensions import DiagGGNExact
    from curvlinops import GGNLinearOperator

    model, batches = made("layer norm", sizes=(9, 4))
    peer = GGNLinearOperator(model, nn.CrossEntropyLoss(), list(model.parameters()), batches)
    g = ggn(model, loss, batches)
    v = torch.randn(g.shape[0], dtype=torch.float64)
    assert error(g @ v, peer @ v) <= 1e-10

    model, batches = made("batch norm", sizes=(13,))
    model = extend(model.eval())
    criterion = extend(nn.CrossEntropyLoss())
    with backpack(DiagGGNExact()):
        criterion(model(batches[0][0].requires_grad_()), batches[0][1]).backward()
    diagonal = torch.cat([p.diag_ggn_exact.reshape(-1) for p in model.parameters()])
    model, batches = made("batch norm", sizes=(13,))  # theirs leaves hooks in the model
    assert error(ggn(model, loss, batches, mode="eval").dense().diagonal(), diagonal) <= 1e-10


def test_gauss_newton_of_a_linear_model_is_its_hessian():
    model, batches = nn.Linear(24, 5).double(), made("layer norm")[1]
    assert error(ggn(model, loss, batches).dense(), hessian(model, loss, batches).dense()) <= 1e-12


# ---------------------------------------------------------------------------------------------------- batches, parameters


def test_uneven_batches_count_by_their_samples():
    """Of nets whose samples do not see each other, batches of 24, 6 and 1 are one batch of 31."""
    model, batches = made("layer norm", sizes=(24, 6, 1))
    whole = [tuple(torch.cat(parts) for parts in zip(*batches, strict=True))]
    v = torch.randn(hessian(model, loss, whole).shape[0], dtype=torch.float64)
    for make in (hessian, ggn, fisher):
        assert error(make(model, loss, batches) @ v, make(model, loss, whole) @ v) <= 1e-12


def test_weights_and_sums():
    model, batches = made("layer norm", sizes=(8, 4))
    h = hessian(model, loss, batches, weights=[1, 3])
    truth = dense_hessian(model, batches, "train", weights=[0.25, 0.75])
    v = torch.randn(h.shape[0], dtype=torch.float64)
    assert error(h @ v, truth @ v) <= 1e-10

    def summed(model, batch):
        return loss(model, batch) * len(batch[1])

    for make in (hessian, ggn, fisher):
        assert error(make(model, summed, batches, reduction="sum") @ v, 12 * (make(model, loss, batches) @ v)) <= 1e-10


def test_blocks_are_the_diagonal_blocks(truths):
    model, batches = made("layer norm")
    truth = truths("layer norm", "train")
    for make, dense in ((hessian, truth), (ggn, ggn(model, loss, batches).dense())):
        operator = make(model, loss, batches)
        blocks = operator.blocks()
        assert list(blocks) == ["0", "1", "3", "4", "6"]
        for layer in operator.layers:
            assert error(blocks[layer.name].dense(), dense[layer.where, layer.where]) <= 1e-10
        one = operator.block("3.weight")
        assert one.names == ("3.weight",)
        assert one.shape == (22 * 22, 22 * 22)
        chosen = make(model, loss, batches, parameters=["3", "0.bias"])
        assert chosen.names == ("0.bias", "3.weight", "3.bias")
        index = torch.cat([
            torch.arange(24 * 22, 24 * 22 + 22),
            torch.arange(operator.layers[2].where.start, operator.layers[2].where.stop),
        ])
        assert error(chosen.dense(), dense[index][:, index]) <= 1e-10


def test_unused_parameters_are_named_rows_of_zeros():
    class Partly(nn.Module):
        def __init__(self):
            super().__init__()
            self.used, self.left = nn.Linear(24, 5), nn.Linear(3, 3)

        def forward(self, x):
            return self.used(x)

    for make in (hessian, ggn, fisher):
        operator = make(Partly().double(), loss, made("layer norm")[1])
        assert operator.unused == ("left.weight", "left.bias")
        assert "unused: left.weight, left.bias" in repr(operator)
        dense = operator.dense()
        assert float(dense[-12:].abs().max()) == 0
        assert float(dense[:, -12:].abs().max()) == 0
        assert float(dense[:-12, :-12].norm()) > 0


def test_tied_weights_are_one_parameter():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.second = nn.Linear(24, 24), nn.Linear(24, 24)
            self.second.weight = self.first.weight

        def forward(self, x):
            return self.second(torch.tanh(self.first(x)))

    model, batches = Tied().double(), made("layer norm")[1]
    h = hessian(model, loss, batches)
    assert h.names == ("first.weight", "first.bias", "second.bias")
    truth = dense_hessian(model, batches, "train")
    v = torch.randn(h.shape[0], dtype=torch.float64)
    assert error(h @ v, truth @ v) <= 1e-10


def test_scipy_sees_the_same_matrix(truths):
    model, batches = made("layer norm")
    view = hessian(model, loss, batches).linear_operator()
    v = torch.randn(view.shape[0], dtype=torch.float64)
    assert error(torch.from_numpy(view @ v.numpy()), truths("layer norm", "train") @ v) <= 1e-10
    assert error(torch.from_numpy(view.T @ v.numpy()), truths("layer norm", "train") @ v) <= 1e-10


# ---------------------------------------------------------------------------------------------------- precision


@pytest.mark.parametrize("half", [torch.bfloat16, torch.float16])
def test_models_in_half_precision_are_measured_in_float32(half):
    model, batches = made("layer norm", torch.float32)
    model = model.to(half)
    x, y = batches[0]
    h = hessian(model, loss, [(x.to(half), y)])
    truth = dense_hessian(model.double(), [(x.to(half).double(), y)], "train")
    v = torch.randn(h.shape[0], dtype=torch.float64)
    assert h.dtype == torch.float32
    assert error((h @ v).double(), truth @ v) <= 1e-5


def test_autocast_inside_the_loss_is_off():
    model, batches = made("layer norm", torch.float32)
    v = torch.randn(hessian(model, loss, batches).shape[0])

    def mixed(model, batch):
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return loss(model, batch)

    plain = hessian(model, loss, batches) @ v
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert torch.equal(hessian(model, mixed, batches, method="recompute") @ v, plain)
        assert torch.is_autocast_enabled("cpu")
    half = mixed(model, batches[0])
    assert not torch.equal(half, loss(model, batches[0])), "autocast works again afterwards"
