"""One test for each private or patched name of torch: a release that drops one is seen here."""

import functools
import sys

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.checkpoint import checkpoint

from trimtab import _torch


def test_current_graph_task_id():
    seen = []
    x = torch.ones(3, requires_grad=True)
    y = x * 2
    y.register_hook(lambda g: seen.append(_torch.in_backward()))
    assert not _torch.in_backward()
    y.sum().backward()
    assert seen == [True]
    assert not _torch.in_backward()


@pytest.mark.parametrize("reentrant", [False, True])
def test_current_graph_task_id_tells_the_second_forward_of_a_checkpoint(reentrant):
    seen = []

    def block(x):
        seen.append(_torch.in_backward())
        return x.sin().sin()

    checkpoint(block, torch.ones(3, requires_grad=True), use_reentrant=reentrant).sum().backward()
    assert seen == [False, True]


@pytest.mark.filterwarnings("ignore:`torch.jit.script` is deprecated:DeprecationWarning")
def test_maybe_current_level():
    seen = []

    def f(x):
        seen.append(_torch.functorch_is_active())
        return x.sin().sum()

    f(torch.ones(3))
    vmap(f)(torch.ones(2, 3))
    grad(f)(torch.ones(3))
    jvp(f, (torch.ones(3),), (torch.ones(3),))
    f(torch.ones(3))
    assert seen == [False, True, True, True, False]


def test_len_torch_dispatch_stack():
    class Mode(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            return func(*args, **(kwargs or {}))

    assert not _torch.dispatch_mode_is_active()
    with Mode():
        assert _torch.dispatch_mode_is_active()
    assert not _torch.dispatch_mode_is_active()


@pytest.mark.filterwarnings("ignore:`torch.jit.trace:DeprecationWarning")
def test_is_tracing():
    seen = []

    def f(x):
        seen.append(_torch.is_traced())
        return x.sin()

    f(torch.ones(3))
    torch.jit.trace(f, torch.ones(3), check_trace=False)
    assert seen == [False, True]


def test_is_replica():
    layer = nn.Linear(2, 2)
    assert not _torch.is_replica(layer)
    assert _torch.is_replica(layer._replicate_for_data_parallel())


def test_sequence_nr():
    x = torch.ones(3, requires_grad=True)
    a = x * 2
    b = a + 1
    assert _torch.sequence_number(b.grad_fn) > _torch.sequence_number(a.grad_fn)
    assert _torch.sequence_number(a.grad_fn) == _torch.sequence_number(a.grad_fn)


def counting(calls):
    """A backend that notes each run of what it has compiled."""

    def backend(graph, example):
        def run(*args):
            calls.append("compiled")
            return graph.forward(*args)

        return run

    return backend


def test_set_stance():
    calls, someone, somebody = [], object(), object()
    f = torch.compile(lambda x: x + 1, backend=counting(calls))
    try:
        _torch.force_eager(True, someone)
        _torch.force_eager(True, somebody)
        assert torch.equal(f(torch.ones(2)), torch.full((2,), 2.0))
        _torch.force_eager(False, someone)
        f(torch.ones(2))
        assert calls == []  # somebody else still wants it so
    finally:
        _torch.force_eager(False, someone)
        _torch.force_eager(False, somebody)
    f(torch.ones(2))
    assert calls == ["compiled"]
    torch._dynamo.reset()


def test_the_stance_is_taken_when_the_compiler_comes(monkeypatch):
    """A script imports the compiler with its first `torch.compile`, when it is watched already."""
    real, calls = torch.compile, []
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo", raising=False)
        _torch.force_eager(True)
        _torch.force_eager(True)
        awaiting = torch.compile
        assert awaiting is not real
        decorator = torch.compile(backend=counting(calls))
        assert torch.compile is awaiting  # nothing is compiled yet, and no compiler has come
    try:
        f = decorator(lambda x: x + 1)
        assert torch.compile is real
        f(torch.ones(2))
        assert calls == []
    finally:
        _torch.force_eager(False)
    f(torch.ones(2))
    assert calls == ["compiled"]
    with monkeypatch.context() as patch:
        patch.delitem(sys.modules, "torch._dynamo")
        _torch.force_eager(True)
        _torch.force_eager(False)  # the compiler never came
    assert torch.compile is real
    torch._dynamo.reset()


def test_a_whole_graph_that_ran_eagerly_for_us_is_excused():
    """set_fullgraph_compiled_frame_count: our stance may end inside the call, at the optimizer's step or by a fault of ours."""
    calls = []

    def function(x):
        torch.autograd.backward((x * x).sum())  # told below
        return x + 1

    class Ends:
        def before_backward(self, losses):
            _torch.force_eager(False)

        def after_backward(self):
            pass

    f = torch.compile(function, backend=counting(calls), fullgraph=True)
    ends, x = Ends(), torch.ones(2, requires_grad=True)
    _torch.force_eager(True)
    _torch.listen_to_backward(ends)
    try:
        f(x)
    finally:
        _torch.stop_listening_to_backward(ends)
        _torch.force_eager(False)
    assert calls == []
    assert torch._C._dynamo.eval_frame.set_fullgraph_compiled_frame_count(-1) == -1
    torch._dynamo.reset()


def test_the_compiler_keeps_away_from_what_is_undisturbed():
    """set_code_exec_strategy and _torchdynamo_disable: a call breaks the graph, and nothing of it is compiled."""
    graphs, seen = [], []

    def backend(graph, example):
        graphs.append([node.target for node in graph.graph.nodes if node.op.startswith("call")])
        return graph.forward

    def inner(x):
        return (x * 3).cos()

    @_torch.undisturbed
    def ours(x):
        seen.append(torch.compiler.is_compiling())
        return inner(x)

    f = torch.compile(lambda x: ours(x.sin()).tan(), backend=backend)
    x = torch.ones(2)
    assert torch.equal(f(x), (x.sin() * 3).cos().tan())
    assert seen == [False]
    assert [len(graph) for graph in graphs] == [1, 1]
    torch._dynamo.reset()


def test_has_any_global_hook():
    module = torch.nn.modules.module
    real = module._has_any_global_hook
    ours = module.register_module_forward_pre_hook(lambda *_: None)
    put_back = _torch.keep_from_view([ours])
    assert not module._has_any_global_hook()
    assert _torch.has_global_hooks()
    theirs = module.register_module_forward_hook(lambda *_: None)
    assert module._has_any_global_hook()
    for handle in (theirs, ours):
        handle.remove()
    put_back()
    assert module._has_any_global_hook is real


@pytest.fixture
def stance():
    """The stance of the compiler as it is now; the default again afterwards."""
    pytest.importorskip("torch._dynamo")

    def now():
        probe = torch.compiler.set_stance("default")
        probe.__exit__(None, None, None)
        return probe.prev.stance

    torch.compiler.set_stance("default")
    yield now
    torch.compiler.set_stance("default")


@pytest.mark.parametrize("users", ["default", "fail_on_recompile", "force_eager"])
def test_the_users_own_stance_is_put_back(stance, users):
    torch.compiler.set_stance(users)
    for _ in range(2):
        _torch.force_eager(True)
        _torch.force_eager(True)
        assert stance() == "force_eager"
        _torch.force_eager(False)
        assert stance() == users
        _torch.force_eager(False)
        assert stance() == users


def test_a_stance_that_the_user_takes_in_between_stays(stance):
    _torch.force_eager(True)
    torch.compiler.set_stance("eager_on_recompile")
    _torch.force_eager(False)
    assert stance() == "eager_on_recompile"
    _torch.force_eager(True)
    torch.compiler.set_stance("fail_on_recompile")
    _torch.force_eager(True)
    assert stance() == "force_eager"
    _torch.force_eager(False)
    assert stance() == "fail_on_recompile"


class Ear:
    def __init__(self):
        self.heard = []

    def before_backward(self, losses):
        self.heard.append(losses)

    def after_backward(self):
        self.heard.append("after")


def test_backward_is_wrapped_while_somebody_listens():
    original, ears = torch.autograd.backward, [Ear(), Ear()]
    for ear in ears:
        _torch.listen_to_backward(ear)
    try:
        assert torch.autograd.backward is not original
        assert torch.autograd.backward.__doc__ == original.__doc__
        x = torch.ones(3, requires_grad=True)
        loss = (x * 2).sum()
        loss.backward()
        other = (x * 3).sum()
        torch.autograd.backward(tensors=[other])
        torch.autograd.grad((x * 2).sum(), x)  # no pass of training
        checkpoint(torch.sin, x, use_reentrant=True).sum().backward()  # a pass inside the pass counts once
        with pytest.raises(RuntimeError, match="second time"):
            (x.exp().sum()).backward(retain_graph=False) or loss.backward()
    finally:
        _torch.stop_listening_to_backward(ears[0])
        assert torch.autograd.backward is not original
        _torch.stop_listening_to_backward(ears[1])
    assert torch.autograd.backward is original
    for ear in ears:
        starts, ends = ear.heard[::2], ear.heard[1::2]
        assert [type(s) for s in starts] == [tuple] * len(starts)
        assert starts[0][0] is loss
        assert starts[1][0] is other
        assert ends == ["after"] * len(starts)
    assert torch.equal(x.grad[:1], x.grad[:1])


def test_stopping_twice_or_unasked_does_nothing():
    original = torch.autograd.backward
    _torch.stop_listening_to_backward(Ear())
    ear = Ear()
    _torch.listen_to_backward(ear)
    _torch.stop_listening_to_backward(ear)
    _torch.stop_listening_to_backward(ear)
    assert torch.autograd.backward is original


def test_somebody_elses_wrapper_around_ours_stays():
    original, ear = torch.autograd.backward, Ear()
    _torch.listen_to_backward(ear)
    ours = torch.autograd.backward
    theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
    torch.autograd.backward = theirs
    try:
        _torch.stop_listening_to_backward(ear)
        assert torch.autograd.backward is theirs
        x = torch.ones(3, requires_grad=True)
        (x * 2).sum().backward()
        assert ear.heard == []
        later = Ear()
        _torch.listen_to_backward(later)
        (x * 2).sum().backward()
        assert len(later.heard) == 2
        _torch.stop_listening_to_backward(later)
    finally:
        torch.autograd.backward = ours
        last = Ear()
        _torch.listen_to_backward(last)
        _torch.stop_listening_to_backward(last)
    assert torch.autograd.backward is original


def one_pass():
    torch.ones(3, requires_grad=True).sum().backward()


def test_a_patch_that_was_there_before_ours_is_taken_away():
    """What they put back is torch's own function, without our wrapper: whoever listens next must hear all the same."""
    original, first, second = torch.autograd.backward, Ear(), Ear()
    torch.autograd.backward = lambda *args, **kwargs: original(*args, **kwargs)
    try:
        _torch.listen_to_backward(first)
        torch.autograd.backward = original
        _torch.stop_listening_to_backward(first)
        _torch.listen_to_backward(second)
        one_pass()
        assert len(second.heard) == 2
        _torch.stop_listening_to_backward(second)
        assert torch.autograd.backward is original
    finally:
        torch.autograd.backward = original


@pytest.mark.parametrize("says_what_it_wraps", [True, False])
def test_nobody_hears_twice_through_somebody_elses_wrapper(says_what_it_wraps):
    original, ears = torch.autograd.backward, [Ear(), Ear()]
    try:
        _torch.listen_to_backward(ears[0])
        ours = torch.autograd.backward
        theirs = lambda *args, **kwargs: ours(*args, **kwargs)  # noqa: E731
        torch.autograd.backward = functools.wraps(ours)(theirs) if says_what_it_wraps else theirs
        _torch.listen_to_backward(ears[1])
        one_pass()
        one_pass()
        assert [len(ear.heard) for ear in ears] == [4, 4]
        for ear in ears:
            _torch.stop_listening_to_backward(ear)
        assert torch.autograd.backward is theirs
        one_pass()
        assert [len(ear.heard) for ear in ears] == [4, 4]
    finally:
        torch.autograd.backward = original


def test_hooks():
    layer = nn.Linear(2, 2)
    assert not _torch.has_hooks(layer)
    before, after = (lambda module, args: None), (lambda module, args, output: None)
    handles = [layer.register_forward_pre_hook(before), layer.register_forward_hook(after)]
    assert _torch.forward_hooks(layer) == (before, after)
    assert _torch.has_hooks(layer)
    for handle in handles:
        handle.remove()
    layer.register_full_backward_hook(lambda module, into, out: None)
    assert _torch.forward_hooks(layer) == ()
    assert _torch.has_hooks(layer)
    assert not _torch.has_global_hooks()
    for register in (
        nn.modules.module.register_module_forward_pre_hook,
        nn.modules.module.register_module_forward_hook,
    ):
        handle = register(lambda *_: None)
        assert _torch.has_global_hooks()
        handle.remove()
    assert not _torch.has_global_hooks()


def test_input_metadata():
    x = torch.ones(3, 1, requires_grad=True)
    assert _torch.output_shape((x - torch.ones(4)).grad_fn) == [3, 4]
    assert _torch.output_shape(x.sum().grad_fn) == []
    assert _torch.output_shape(torch.ones(2, 6, requires_grad=True).split(4, 1)[1].grad_fn, 1) == [2, 2]
    assert _torch.output_shape(x.sum().grad_fn, 7) is None
    assert _torch.output_shape(None) is None


def test_storage_weak_ref():
    x = torch.ones(8)
    held = _torch.weak_storage(x)
    assert held is not None
    assert held == _torch.weak_storage(x[2:])
    view = x.view(2, 4).detach()
    del x
    assert not held.expired()
    del view
    assert held.expired()
    assert _torch.weak_storage(torch.ones(2, device="meta")) is None
    assert _torch.weak_storage(torch.ones(2).to_sparse()) is None


def test_compiled_call_impl():
    torch._dynamo.reset()
    plain, in_place, wrapped = (torch.nn.Sequential(torch.nn.Linear(2, 2)) for _ in range(3))
    in_place[0].compile(backend="eager")
    wrapped[0] = torch.compile(wrapped[0], backend="eager")
    assert [_torch.is_compiled(model) for model in (plain, in_place, wrapped)] == [False, True, True]


def test_is_current_stream_capturing():
    """Where CUDA is not in use there is nothing to ask: a build without it raises."""
    assert not torch.cuda.is_initialized()
    assert not _torch.is_capturing()


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_create_script_module():
    class Kind:
        def __call__(self, *_):
            pass

    create, net = torch.jit._recursive.create_script_module, torch.nn.Linear(2, 2)
    net.register_forward_hook(Kind())
    net.register_forward_pre_hook(Kind())
    before = list(net._forward_hooks), list(net._forward_pre_hooks)
    with pytest.raises(AttributeError):
        torch.jit.script(net)  # without hiding them
    first, second = _torch.hide_from_torchscript(Kind), _torch.hide_from_torchscript(Kind)
    torch.jit.script(net)
    first.remove()
    first.remove()
    torch.jit.script(net)
    assert before == (list(net._forward_hooks), list(net._forward_pre_hooks))
    second.remove()
    assert torch.jit._recursive.create_script_module is create


def test_gradient_scalers():
    real, one = torch.amp.GradScaler.scale, torch.ones(1)
    first, second = _torch.notice_scalers(), _torch.notice_scalers()
    scalers = [torch.amp.GradScaler("cpu", init_scale=7.0), torch.amp.GradScaler("cpu", enabled=False)]
    assert _torch.loss_scales() == []
    scaled = [scaler.scale(one).item() for scaler in scalers]
    assert scaled == [7.0, 1.0]
    assert [float(scale) for scale in _torch.loss_scales()] == [7.0]
    first.remove()
    assert torch.amp.GradScaler.scale is not real
    del scalers
    assert _torch.loss_scales() == []
    second.remove()
    assert torch.amp.GradScaler.scale is real


def test_get_dispatch_mode():
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    seen = [_torch.is_faked()]
    with FakeTensorMode():
        seen.append(_torch.is_faked())
    make_fx(lambda x: seen.append(_torch.is_faked()) or x + 1)(torch.ones(2))
    assert seen == [False, True, True]


@pytest.mark.parametrize(
    ("owner", "name", "take"),
    [
        (torch.amp.GradScaler, "scale", _torch.notice_scalers),
        (torch.jit._recursive, "create_script_module", lambda: _torch.hide_from_torchscript(int)),
    ],
)
def test_somebody_elses_patch_around_ours_stays_and_ours_does_nothing(owner, name, take):
    real, handle = getattr(owner, name), take()
    ours = getattr(owner, name)
    theirs = functools.wraps(ours)(lambda *args: ours(*args))
    setattr(owner, name, theirs)
    handle.remove()
    assert getattr(owner, name) is theirs
    setattr(owner, name, real)


def test_autocast_can_be_kept_from_having_an_effect():
    a = torch.ones(4, 4)
    enter = torch.autocast.__enter__
    with torch.autocast("cpu", dtype=torch.bfloat16):
        with _torch.without_autocast():
            assert (a @ a).dtype == torch.float32
            with torch.autocast("cpu", dtype=torch.bfloat16):
                assert (a @ a).dtype == torch.float32
            with _torch.without_autocast(), torch.amp.autocast("cpu", dtype=torch.bfloat16):
                assert (a @ a).dtype == torch.float32
        assert (a @ a).dtype == torch.bfloat16, "the user's own is as it was"
    assert torch.autocast.__enter__ is enter
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert (a @ a).dtype == torch.bfloat16
