"""The tape: layouts, kinds of tensor, what is not measured, growth, threads, differences."""

import os
import subprocess
import sys
import threading

import numpy as np
import pytest
import torch
from stats_cases import assert_rows_close, truth
from torch._subclasses import FakeTensorMode
from torch.utils._python_dispatch import TorchDispatchMode

from trimtab import stats
from trimtab.stats import Tape
from trimtab.stats import tape as tape_module
from trimtab.stats._device_kernel import device_raw


def normal(*shape, seed=0, dtype=torch.float32):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


LAYOUTS = {
    "contiguous": lambda: normal(6, 8, 10, 12),
    "channels_last": lambda: normal(6, 8, 10, 12).to(memory_format=torch.channels_last),
    "transposed": lambda: normal(80, 120).T,
    "permuted": lambda: normal(6, 8, 10, 12).permute(2, 0, 3, 1),
    "slice": lambda: normal(100, 100)[10:40],
    "strided": lambda: normal(100, 100)[::2, 5:50],
    "expanded": lambda: normal(50, 1).expand(50, 30),
    "flipped view": lambda: normal(2, 50, 3)[:, :, 1],
    "size one axes": lambda: normal(1, 30, 1, 7).transpose(0, 1),
    "blocks": lambda: normal(9, 8192)[::2, :4096],
    "0-dim": lambda: torch.tensor(2.5),
    "empty": lambda: torch.empty(0, 3),
    "parameter": lambda: torch.nn.Parameter(normal(30, 20)),
    "graph": lambda: torch.nn.Parameter(normal(30, 20)) * 2,
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_layouts(measure, name, dtype):
    x = LAYOUTS[name]().to(dtype)
    assert_rows_close(measure(x), truth(x.detach().double()))


def test_dense_layouts_are_read_without_a_copy(tape, monkeypatch):
    inputs = [LAYOUTS[name]() for name in ("channels_last", "transposed", "permuted")]

    def refuse(*_):
        raise AssertionError("copied")

    monkeypatch.setattr(torch.Tensor, "contiguous", lambda x: x if x.is_contiguous() else refuse())
    monkeypatch.setattr(torch.Tensor, "clone", refuse)
    assert [tape.measure(x) for x in inputs] == [0, 1, 2]


@pytest.mark.parametrize("dtype", [torch.complex64, torch.complex128])
def test_complex_is_measured_by_modulus(measure, dtype):
    x = normal(300, dtype=dtype)
    for values in (x, x.conj()):
        assert_rows_close(measure(values), truth(x.abs()))


def test_pending_negation(measure):
    x = normal(300, dtype=torch.complex64)
    assert_rows_close(measure(x.conj().imag), truth(-x.imag))
    assert_rows_close(measure(x[:1].conj().imag), truth(-x[:1].imag))


@pytest.mark.filterwarnings("ignore:Sparse")
@pytest.mark.parametrize("layout", ["coo", "csr", "duplicates"])
def test_sparse_gives_its_stored_values(measure, layout):
    dense = normal(20, 30) * (normal(20, 30, seed=1) > 0)
    if layout == "duplicates":
        index = torch.tensor([[0, 0, 1], [2, 2, 0]])
        sparse = torch.sparse_coo_tensor(index, torch.tensor([1.0, 2.0, 5.0]), check_invariants=True)
        expected = truth([3.0, 5.0])
    else:
        sparse = dense.to_sparse() if layout == "coo" else dense.to_sparse_csr()
        expected = truth(dense[dense != 0])
    assert_rows_close(measure(sparse), expected)


def test_embedding_gradient(measure):
    embedding = torch.nn.Embedding(40, 4, sparse=True)
    embedding(torch.tensor([3, 3, 7])).sum().backward()
    assert measure(embedding.weight.grad)[0] == 8


class Sharded(torch.Tensor):
    """Stands for a DTensor: what it holds is not what it shows."""

    def to_local(self):
        return torch.ones(3)


def test_distributed_tensor_gives_its_shard(tape):
    index = tape.measure(normal(10).as_subclass(Sharded))
    assert tape.rows()[index][0] == 3


def freed():
    whole = normal(10)
    part = whole[4:]  # its address is that of its offset once the storage is gone
    whole.untyped_storage().resize_(0)
    return part


def fake():
    with FakeTensorMode():
        return torch.ones(3)


NOTHING = {
    "int": lambda: torch.arange(5),
    "bool": lambda: torch.ones(5, dtype=torch.bool),
    "meta": lambda: torch.empty(5, device="meta"),
    "fake": fake,
    "freed": freed,
    "lazy": lambda: torch.nn.LazyLinear(3).weight,
    "quantized": lambda: torch.quantize_per_tensor(torch.ones(4), 0.1, 0, torch.quint8),
    "mkldnn": lambda: torch.ones(4).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore:.*quantize")
@pytest.mark.parametrize("name", NOTHING)
def test_nothing_to_measure(tape, name):
    x = NOTHING[name]()
    assert tape.measure(x) == -1
    assert tape.measure_difference(x, x) == -1
    assert len(tape) == 0
    assert tape.rows().shape == (0, 7)


def test_functorch_tensors_are_left_alone(tape):
    seen = []

    def f(x):
        seen.extend((tape.measure(x), tape.measure_difference(x, x)))
        return x.sum()

    torch.vmap(f)(normal(3, 4))
    torch.func.grad(f)(normal(4))
    assert seen == [-1] * 4


def test_rows_stay_in_order_over_many_chunks_and_after_clear(tape):
    for _ in range(2):
        values = [torch.full((3,), float(i)) for i in range(1200)]
        assert [tape.measure(x) for x in values] == list(range(1200))
        assert len(tape) == 1200
        np.testing.assert_array_equal(tape.rows()[:, 1], np.arange(1200))
        tape.clear()
        assert len(tape) == 0


def test_rows_on_a_device_are_read_together_and_keep_their_places(monkeypatch):
    waits = []
    monkeypatch.setattr(torch.accelerator, "synchronize", waits.append)
    tape, device = Tape(), torch.device("cpu")  # stands for an accelerator
    values = [normal(n, seed=n) for n in (5, 7, 9, 11)]
    for i, x in enumerate(values):
        if i % 2:
            tape._pending.setdefault(device, []).append((tape._draw(), len(x), device_raw(x)))
        else:
            tape.measure(x)
    for row, x in zip(tape.rows(), values, strict=True):
        assert_rows_close(row, truth(x))
    assert waits == [device]
    np.testing.assert_array_equal(tape.rows(), tape.rows())
    assert waits == [device]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_the_device_path_never_asks_the_host(dtype):
    raw = device_raw(torch.empty(5, dtype=dtype, device="meta"))  # a branch on a value would have raised
    assert raw.device.type == "meta"


def test_rows_are_a_copy(tape):
    tape.measure(torch.ones(3))
    rows = tape.rows()
    tape.clear()
    tape.measure(torch.zeros(3))
    assert rows[0, 1] == 1


def test_measuring_leaves_no_trace(tape):
    x = torch.nn.Parameter(normal(200_000))
    before, state = x.detach().clone(), torch.get_rng_state()
    tape.measure(x)
    tape.measure_difference(x, before)
    assert torch.equal(x, before)
    assert x.grad is None
    assert torch.equal(torch.get_rng_state(), state)


def test_threads_draw_different_rows(tape):
    values = [torch.full((5,), float(i)) for i in range(4000)]
    places = {}

    def work(k):
        for i in range(k, len(values), 4):
            places[i] = tape.measure(values[i])

    threads = [threading.Thread(target=work, args=(k,)) for k in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(places.values()) == list(range(len(values)))
    rows = tape.rows()
    assert all(rows[place, 1] == i for i, place in places.items())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64])
@pytest.mark.parametrize("shape", [(), (200,), (5000,), (70, 130)])
def test_difference(tape, dtype, shape):
    before = normal(*shape, dtype=torch.complex64 if dtype.is_complex else torch.float32).to(dtype)
    after = torch.nn.Parameter(before + 1e-2 * normal(*shape, seed=1).to(dtype))
    index = tape.measure_difference(after, before)
    wide = torch.complex128 if dtype.is_complex else torch.float64
    if dtype in {torch.float32, torch.complex64}:
        delta = (after.detach() - before).abs() if dtype.is_complex else after.detach() - before
    else:
        delta = after.detach().to(wide) - before.to(wide)
    assert_rows_close(tape.rows()[index], truth(delta))


def test_difference_of_low_precision_is_taken_in_float32(tape):
    before, after = torch.full((10,), 1.0, dtype=torch.bfloat16), torch.full((10,), 257.0, dtype=torch.bfloat16)
    tape.measure_difference(after, before)
    assert tape.rows()[0, 1] == float(after[0]) - 1.0


@pytest.mark.parametrize("name", ["channels_last", "transposed", "strided", "expanded"])
def test_difference_of_layouts(tape, name):
    after = LAYOUTS[name]()
    before = after.clone(memory_format=torch.contiguous_format).roll(1, 0)
    for other in (before, torch.empty_like(after).copy_(before)):
        index = tape.measure_difference(after, other)
        assert_rows_close(tape.rows()[index], truth(after - other))


def test_difference_of_nonfinite_values(tape):
    x = torch.tensor([1.0, torch.inf, torch.nan, 4.0])
    tape.measure_difference(x, torch.ones(4))
    assert_rows_close(tape.rows()[0], truth([0.0, 3.0, np.inf, np.nan]))


def test_difference_of_two_shapes_says_both(tape):
    with pytest.raises(ValueError, match=r"\(3,\) and \(4,\).*one shape"):
        tape.measure_difference(torch.ones(3), torch.ones(4))


def test_measures_inside_backward_hooks(tape):
    x = torch.nn.Parameter(normal(20))
    y = x * 3

    def hook(gradient):
        tape.measure(gradient)

    y.register_hook(hook)
    (y.sum() * 2).backward()
    assert tape.rows()[0, 1] == 2


def test_path_follows_the_environment(monkeypatch):
    pytest.importorskip("numba")
    monkeypatch.setenv("TRIMTAB_NO_NUMBA", "0")
    assert stats.warm_up()
    assert Tape()._kernels
    monkeypatch.setenv("TRIMTAB_NO_NUMBA", "1")
    assert not stats.warm_up()
    assert not Tape()._kernels


def run(code, **environment):
    return subprocess.run(
        [sys.executable, "-W", "error", "-c", code], env={**os.environ, **environment}, text=True, capture_output=True
    )


def test_import_does_not_load_numba():
    result = run("import sys, trimtab.stats; assert 'numba' not in sys.modules")
    assert result.returncode == 0, result.stderr


def test_works_without_numba():
    code = (
        "import sys; sys.modules['numba'] = None\n"
        "import torch; from trimtab import stats\n"
        "assert not stats.warm_up()\n"
        "tape = stats.Tape(); tape.measure(torch.ones(3)); assert tape.rows()[0, 1] == 1"
    )
    result = run(code)
    assert result.returncode == 0, result.stderr


def test_works_where_nothing_can_be_cached(monkeypatch):
    numba = pytest.importorskip("numba")
    from trimtab.stats import compiling

    real = numba.njit

    def no_cache(*args, cache=False, **kwargs):
        if cache:
            raise RuntimeError("cannot cache function: no locator available")
        return real(*args, **kwargs)

    monkeypatch.setattr(numba, "njit", no_cache)
    assert not compiling._can_cache()
    monkeypatch.setattr(compiling, "_CACHE", False)
    double = compiling.jit("int64(int64)")(lambda x: 2 * x)
    assert double(4) == 8


class Operations(TorchDispatchMode):
    """Notes every operation of torch that runs."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.seen.append(func.overloadpacket.__name__)
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("compiled", [True, False])
def test_a_call_for_a_small_tensor_runs_no_operation_but_a_copy(compiled, monkeypatch):
    """Each operation costs microseconds; without numba the tensor waits for its neighbours."""
    compiled = compiled and stats.warm_up()
    if not compiled:
        monkeypatch.setattr(tape_module, "compiled_kernel", lambda: None)
    tape, x = Tape(), normal(200)
    with Operations() as operations:
        tape.measure(x)
    assert set(operations.seen) <= (set() if compiled else {"detach", "view", "clone"})
    assert_rows_close(tape.rows()[0], truth(x))
