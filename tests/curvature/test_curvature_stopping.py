"""The stop rule on real networks: the top five at 1e-3 against a run to 1e-7 in float64. Sixty runs in all, a sample in the fast tier."""

import numpy as np
import pytest
import torch
from curvature_workloads import loss, make

from trimtab.curvature import eigenvalues, ggn, ggn_trace, hessian, trace


def truths(model, batch, mode):
    found = eigenvalues(hessian(model, loss, [batch], mode=mode, dtype=torch.float64), 5, 1e-7, seed=99)
    assert found.converged.all()
    return found.values


def wrong(name, mode, net_seed, starts):
    model, batch = make(name, net_seed)
    truth = truths(model, batch, mode)
    h = hessian(model, loss, [batch], mode=mode)
    bad = []
    for seed in starts:
        found = eigenvalues(h, 5, 1e-3, seed=seed)
        error = np.abs(found.values - truth)
        if not (np.all(error <= 1e-3 * np.abs(truth)) and np.all(error <= found.error) and found.converged.all()):
            bad.append((name, mode, net_seed, seed, error / np.abs(truth), found.error / np.abs(truth)))
        assert found.symmetric
    return bad


@pytest.mark.parametrize("mode", ["train", "eval"])
def test_stop_rule_on_the_small_net(mode):
    assert wrong("S", mode, 0, range(4)) == []


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["train", "eval"])
@pytest.mark.parametrize(("name", "nets", "starts"), [("S", 5, 2), ("W1", 4, 2), ("W2", 3, 2), ("W3", 3, 2)])
def test_stop_rule_sixty_times(name, nets, starts, mode):
    """2 x (5 x 2 + 4 x 2 + 3 x 2 + 3 x 2) = 60 runs."""
    bad = [failure for net in range(nets) for failure in wrong(name, mode, net, range(10 * net, 10 * net + starts))]
    assert bad == []


@pytest.mark.slow
def test_exact_trace_of_a_large_relu_net_is_the_trace_of_its_hessian():
    model, batch = make("W1")
    exact = ggn_trace(model, loss, [batch], mode="eval")
    assert exact.error == 0
    for operator in (hessian(model, loss, [batch], mode="eval"), ggn(model, loss, [batch], mode="eval")):
        estimate = trace(operator, 96)
        assert abs(estimate.value - exact.value) <= 4 * estimate.error
