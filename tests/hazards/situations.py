"""Situations of real training code in which monitors break the run or misread it, each a small deterministic run.

`train` runs one, with whatever is around it, and gives back all that it leaves behind; as a script, this file prints that as one digest.
"""

import copy
import dataclasses
import hashlib
import random
import sys
import threading
from collections.abc import Callable

import numpy as np
import torch
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


@dataclasses.dataclass
class Run:
    """What is trained and how.

    Attributes:
        models: The models, the first of which `sees` speaks of.
        optimizers: Their optimizers.
        step: One training step.
        sees: Entries of some modules' outputs, and of the gradients there, that one step brings.
        unseen: Modules whose outputs nobody can see.
        every: Steps of optimizers in one call of `step`.
        end: Called when the run is over.
    """

    models: list
    optimizers: list
    step: Callable[[], object]
    sees: dict = dataclasses.field(default_factory=dict)
    unseen: tuple = ()
    every: int = 1
    end: Callable[[], object] = lambda: None


SITUATIONS = {}


def situation(hazard, **options):
    """Register a situation of one hazard by the function's name."""

    def register(make):
        SITUATIONS[make.__name__] = make
        make.hazard, make.options = hazard, options
        return make

    return register


class Net(nn.Module):
    def __init__(self, body, wide=8):
        super().__init__()
        self.front = nn.Linear(5, wide)
        self.body = body
        self.head = nn.Linear(wide, 3)

    def forward(self, x):
        return self.head(self.body(self.front(x)))


X, Y = torch.randn(16, 5, generator=torch.Generator().manual_seed(1)), torch.arange(16) % 3
WHOLE = {"front": 128, "head": 48}


def learn(net, optimizer, loss=lambda net: F.cross_entropy(net(X + torch.randn(16, 5) / 9), Y)):
    """A training step as everybody writes it."""

    def step():
        optimizer.zero_grad()
        value = loss(net)
        value.backward()
        optimizer.step()
        return value

    return step


def usual(net, sees=WHOLE, make=lambda parameters: torch.optim.SGD(parameters, 0.1, momentum=0.9), **more):
    optimizer = make(net.parameters())
    return Run([net], [optimizer], learn(net, optimizer), sees, **more)


@situation(1)
def in_place():
    class Residual(nn.Module):
        def __init__(self):
            super().__init__()
            self.f = nn.Linear(8, 8)

        def forward(self, x):
            y = self.f(x)
            y += x
            return y

    return usual(Net(nn.Sequential(nn.ReLU(inplace=True), Residual(), nn.ReLU(inplace=True))))


@dataclasses.dataclass
class Out:
    left: torch.Tensor
    right: list


class Structured(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(8, 8)

    def forward(self, x):
        return {"out": Out(self.f(x).tanh(), [x, 3])}


class Taking(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = Structured()

    def forward(self, x):
        out = self.inner(x)["out"]
        return out.left + out.right[0]


@situation(2)
def structured_outputs():
    return usual(Net(Taking()), {"body.inner": 128, "body.inner[1]": 128, **WHOLE})


@situation(2)
def packed_sequence():
    class Sequence(nn.Module):
        def __init__(self):
            super().__init__()
            self.lstm, self.head = nn.LSTM(5, 4), nn.Linear(4, 3)

        def forward(self, x):
            packed = nn.utils.rnn.pack_sequence([x[:3], x[3:5], x[5:6]])
            return self.head(self.lstm(packed)[0].data)

    net = Sequence()
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return Run(
        [net], [optimizer], learn(net, optimizer, lambda net: F.cross_entropy(net(X), Y[:6])), {"lstm": 24, "head": 18}
    )


class Looped(nn.Module):
    def __init__(self):
        super().__init__()
        self.cell = nn.Linear(8, 8)

    def forward(self, x):
        for _ in range(5):
            x = torch.tanh(self.cell(x))
        return x


@situation(3)
def shared_module():
    return usual(Net(Looped()), {"body.cell": 5 * 128, **WHOLE})


@situation(4)
def integer_input():
    net = nn.Sequential(nn.Embedding(9, 5), nn.Flatten(), nn.Linear(10, 3))
    tokens = torch.randint(0, 9, (16, 2))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    loss = lambda net: F.cross_entropy(net(tokens), Y)  # noqa: E731
    return Run([net], [optimizer], learn(net, optimizer, loss), {"0": 160, "2": 48})


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.block, self.reentrant = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.2), nn.Tanh()), reentrant

    def forward(self, x):
        return checkpoint(self.block, x, use_reentrant=self.reentrant)


@situation(5)
def checkpoint_non_reentrant():
    return usual(Net(Checkpointed(False)), {"body.block.0": 128, "body.block.1": 128, **WHOLE})


@situation(5)
def checkpoint_reentrant():
    return usual(Net(Checkpointed(True)), {"body.block.0": 128, "body.block.1": 128, **WHOLE})


@situation(6)
def accumulation():
    net = Net(nn.ReLU())
    optimizer = torch.optim.Adam(net.parameters(), 1e-2)

    def step():
        optimizer.zero_grad()
        losses = [F.cross_entropy(net(x), y) / 4 for x, y in zip(X.chunk(4), Y.chunk(4), strict=True)]
        for loss in losses:
            loss.backward()
        optimizer.step()
        return sum(losses)

    return Run([net], [optimizer], step, WHOLE)


@situation(7)
def bf16_autocast():
    net = Net(nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(net):
        with torch.autocast("cpu", torch.bfloat16):
            return F.cross_entropy(net(X), Y)

    return Run([net], [optimizer], learn(net, optimizer, loss), WHOLE)


def scaled(fused, explicit):
    net = Net(nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), 0.1, fused=fused)
    scaler = torch.amp.GradScaler("cpu", init_scale=1000.0)

    def step():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(X), Y)
        scaler.scale(loss).backward()
        if explicit:
            scaler.unscale_(optimizer)
            nn.utils.clip_grad_norm_(net.parameters(), 0.1)
        scaler.step(optimizer)
        scaler.update()
        return loss

    return Run([net], [optimizer], step, WHOLE)


@situation(7)
def gradient_scaler():
    return scaled(False, True)


@situation(7)
def gradient_scaler_fused():
    return scaled(True, False)


def compiled(backend, **options):
    torch._dynamo.reset()
    net = Net(nn.Sequential(nn.Linear(8, 8), nn.Tanh()))
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    whole = torch.compile(net, backend=backend, **options)
    return Run([whole], [optimizer], learn(whole, optimizer), {"body.0": 128, **WHOLE}, end=torch._dynamo.reset)


@situation(8)
def compiled_whole_graph():
    return compiled("aot_eager", fullgraph=True)


@situation(8)
def compiled_in_place():
    run = compiled("eager")
    net = run.models[0]._orig_mod
    net.compile(backend="eager", fullgraph=True)
    return dataclasses.replace(run, models=[net], step=learn(net, run.optimizers[0]))


@situation(8)
def compiled_loss_and_step():
    run = compiled("eager")
    net, (optimizer,) = run.models[0]._orig_mod, run.optimizers
    return dataclasses.replace(run, models=[net], step=torch.compile(learn(net, optimizer), backend="eager"))


@situation(8)
def compiled_autograd():
    run = compiled("eager")
    net, (optimizer,) = run.models[0]._orig_mod, run.optimizers
    inner = learn(net, optimizer)

    def step():
        with torch._dynamo.compiled_autograd._enable(torch.compile(backend="eager")):
            return inner()

    return dataclasses.replace(run, models=[net], step=step)


@situation(9)
def distributed_data_parallel():
    import torch.distributed as dist

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    net = nn.parallel.DistributedDataParallel(Net(nn.ReLU()))
    return usual(net, end=dist.destroy_process_group)


@situation(10)
def fully_sharded():
    import torch.distributed as dist
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    mesh, net = init_device_mesh("cpu", (1,)), Net(nn.Linear(8, 8))
    for layer in (net.front, net.body, net):
        fully_shard(layer, mesh=mesh)
    return usual(net, end=dist.destroy_process_group)


@situation(11, every=1)
def gradient_penalty():
    critic = nn.Sequential(nn.Linear(5, 8), nn.Tanh(), nn.Linear(8, 1))
    optimizer = torch.optim.Adam(critic.parameters(), 1e-3)

    def loss(critic):
        fake = torch.randn(16, 5)
        mixed = (0.5 * X + 0.5 * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(mixed).sum(), mixed, create_graph=True)
        return critic(fake).mean() - critic(X).mean() + 10 * ((slope.norm(dim=1) - 1) ** 2).mean()

    return Run([critic], [optimizer], learn(critic, optimizer, loss), {"0": 3 * 128})


@situation(12)
def parametrization():
    body = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    return usual(Net(body), {"body": 128, **WHOLE})


@situation(12)
def foreign_weights():
    net = Net(nn.Tanh())
    weights = {name: p.detach().clone().requires_grad_() for name, p in net.named_parameters()}
    optimizer = torch.optim.SGD(weights.values(), 0.1)
    loss = lambda net: F.cross_entropy(functional_call(net, weights, (X,)), Y)  # noqa: E731
    return Run([net], [optimizer], learn(net, optimizer, loss), WHOLE)


@situation(12)
def per_sample_gradients():
    net = Net(nn.Tanh())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(weights, x, y):
        return F.cross_entropy(functional_call(net, weights, (x[None],)), y[None])

    def step():
        weights = {name: p.detach() for name, p in net.named_parameters()}
        gradients = vmap(grad(loss), (None, 0, 0))(weights, X, Y)
        for name, p in net.named_parameters():
            p.grad = gradients[name].clamp(-0.1, 0.1).mean(0)
        optimizer.step()

    return Run([net], [optimizer], step, unseen=("",))


@situation(12)
def inner_loop():
    net = Net(nn.Tanh())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def loss(net):
        parameters = dict(net.named_parameters())
        first = torch.autograd.grad(F.cross_entropy(net(X), Y), parameters.values(), create_graph=True)
        fast = {name: p - 0.1 * g for (name, p), g in zip(parameters.items(), first, strict=True)}
        return F.cross_entropy(functional_call(net, fast, (X,)), Y)

    return Run([net], [optimizer], learn(net, optimizer, loss), {"head": 2 * 48})


@situation(13)
def averaged_copies():
    run = usual(Net(nn.ReLU()))
    inner, copies = run.step, []

    def step():
        copies[:] = [copy.deepcopy(run.models[0])]
        copies[0](X)
        return inner()

    return dataclasses.replace(run, step=step)


@situation(14)
def an_error_in_between():
    run = usual(Net(nn.ReLU()))
    inner = run.step

    def step():
        try:
            run.models[0](torch.randn(2, 4))
        except RuntimeError:
            return inner()

    return dataclasses.replace(run, step=step)


class Replicated(nn.Module):
    """What `DataParallel` does on several devices, on one, where it calls the module itself."""

    def __init__(self, module):
        super().__init__()
        self.module = module

    def replica(self):
        copies = {id(m): m._replicate_for_data_parallel() for m in self.module.modules()}
        for module in self.module.modules():
            twin = copies[id(module)]
            for name, child in module.named_children():
                setattr(twin, name, copies[id(child)])
            for name, parameter in module.named_parameters(recurse=False):
                setattr(twin, name, parameter * 1)
        return copies[id(self.module)]

    def forward(self, x):
        parts, outputs = x.chunk(2), [None, None]

        def call(i, replica):
            outputs[i] = replica(parts[i])

        threads = [threading.Thread(target=call, args=(i, self.replica())) for i in range(2)]
        for thread in threads:
            thread.start()
            thread.join()
        return torch.cat(outputs)


@situation(16)
def data_parallel():
    return usual(nn.DataParallel(Net(nn.ReLU())))


@situation(16)
def replicas_of_data_parallel():
    return usual(Replicated(Net(nn.ReLU())))


@situation(17)
def lazy():
    return usual(Net(nn.LazyLinear(8)), {"body": 128, **WHOLE})


@situation(18)
def channels_last():
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 2, 3))
    net = net.to(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    images = torch.randn(4, 3, 8, 8).to(memory_format=torch.channels_last)
    return Run([net], [optimizer], learn(net, optimizer, lambda net: net(images).square().mean()), {"0": 576, "3": 128})


@situation(19)
def sparse_gradients():
    net = nn.Sequential(nn.Embedding(40, 5, sparse=True), nn.Flatten(), nn.Linear(10, 3))
    optimizers = [torch.optim.SparseAdam(net[:1].parameters(), 0.01), torch.optim.SGD(net[2:].parameters(), 0.1)]
    tokens = torch.randint(0, 9, (16, 2))

    def step():
        net.zero_grad()
        loss = F.cross_entropy(net(tokens), Y)
        loss.backward()
        for optimizer in optimizers:
            optimizer.step()
        return loss

    return Run([net], optimizers, step, {"0": 160})


class Odd(nn.Module):
    """Gives what cannot be measured, beside what it was given."""

    def __init__(self, make):
        super().__init__()
        self.make = make

    def forward(self, x):
        return self.make(x.detach())


class OddNet(nn.Module):
    def __init__(self):
        super().__init__()
        self.f = nn.Linear(5, 3)
        self.integer, self.empty = Odd(lambda x: x.argmax(-1)), Odd(lambda x: x[:0])
        self.meta, self.number = Odd(lambda x: x.to("meta")), Odd(lambda x: float(x.mean()))
        self.quantized = Odd(lambda x: torch.quantize_per_tensor(x, 0.1, 0, torch.qint8))

    def forward(self, x):
        y = self.f(x)
        for odd in (self.integer, self.empty, self.meta, self.number, self.quantized):
            odd(y)
        return y


@situation(19)
def odd_outputs():
    return usual(OddNet(), {"f": 48}, unseen=("integer", "meta", "number", "quantized"))


@situation(19)
def complex_numbers():
    net = nn.Linear(5, 3, dtype=torch.complex64)
    optimizer = torch.optim.SGD(net.parameters(), 0.1)
    return Run([net], [optimizer], learn(net, optimizer, lambda net: net(X.cfloat()).abs().mean()), {"": 48})


@situation(20)
def frozen():
    net = Net(nn.BatchNorm1d(8).requires_grad_(False).eval())
    net.front.requires_grad_(False)
    return usual(net, {"head": 48}, lambda parameters: torch.optim.SGD([p for p in parameters if p.requires_grad], 0.1))


@situation(21)
def lbfgs():
    net = Net(nn.Tanh())
    optimizer = torch.optim.LBFGS(net.parameters(), 0.5, max_iter=4)

    def closure():
        optimizer.zero_grad()
        loss = F.cross_entropy(net(X), Y)
        loss.backward()
        return loss

    return Run([net], [optimizer], lambda: optimizer.step(closure), WHOLE)


@situation(21)
def fused_optimizer():
    return usual(Net(nn.ReLU()), make=lambda parameters: torch.optim.AdamW(parameters, 0.01, fused=True))


@situation(21)
def foreach_optimizer():
    return usual(Net(nn.ReLU()), make=lambda parameters: torch.optim.Adam(parameters, 0.01, foreach=True))


@situation(21)
def optimizer_in_backward():
    net = Net(nn.ReLU())
    optimizers = {p: torch.optim.SGD([p], 0.1) for p in net.parameters()}

    def update(p):
        optimizers[p].step()
        optimizers[p].zero_grad()

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(update)

    def step():
        loss = F.cross_entropy(net(X), Y)
        loss.backward()
        return loss

    return Run([net], list(optimizers.values()), step, WHOLE)


@situation(21)
def generator_and_critic():
    generator, critic = nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 5)), Net(nn.LeakyReLU(0.2))
    og, oc = (torch.optim.Adam(m.parameters(), 1e-3) for m in (generator, critic))

    def step():
        fake = generator(torch.randn(16, 4))
        oc.zero_grad()
        first = critic(fake.detach()).mean() - critic(X).mean()
        first.backward()
        oc.step()
        og.zero_grad()
        second = -critic(fake).mean()
        second.backward()
        og.step()
        return first + second

    return Run([critic, generator], [oc, og], step, {"front": 2 * 128, "head": 2 * 48}, every=2)


@situation(22)
def evaluation_between():
    run = usual(Net(nn.Dropout(0.5)))
    (net,), inner = run.models, run.step

    def step():
        net.eval()
        with torch.no_grad():
            net(100 * X)
        with torch.inference_mode():
            net(100 * X)
        net.train()
        net(100 * X)  # an evaluation that forgot no_grad
        return inner()

    return dataclasses.replace(run, step=step)


@situation(23)
def another_thread_looks_on():
    run = usual(Net(nn.ReLU()))
    (net,), inner = run.models, run.step

    def look():
        with torch.no_grad():
            net(X)

    def step():
        thread = threading.Thread(target=look)
        thread.start()
        thread.join()
        return inner()

    return dataclasses.replace(run, step=step)


class Bypassed(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.by_forward, self.by_function = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x):
        y = self.attention(x[:, None], x[:, None], x[:, None])[0][:, 0]
        y = torch.relu(self.by_forward.forward(y))
        return F.linear(y, self.by_function.weight, self.by_function.bias)


@situation(24)
def bypassed_modules():
    silent = ("body.attention.out_proj", "body.by_forward", "body.by_function")
    return usual(Net(Bypassed()), {"body.attention": 128, **WHOLE}, unseen=silent)


@situation(25)
def clipping():
    net = Net(nn.ReLU())
    optimizer = torch.optim.SGD(net.parameters(), 0.1)

    def step():
        optimizer.zero_grad()
        loss = 50 * F.cross_entropy(net(X), Y)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 0.01)
        optimizer.step()
        return loss

    return Run([net], [optimizer], step, WHOLE)


# ------------------------------------------------------------------------------------------------ what a run leaves behind


def seed():
    torch.manual_seed(3)
    np.random.seed(3)
    random.seed(3)


def train(run, steps=12):
    """Everything a run leaves behind, as one flat list of tensors and plain values: losses, weights, buffers, states."""
    trace = [loss.detach().clone() for _ in range(steps) if (loss := run.step()) is not None]
    for model in run.models:
        state = model.state_dict()
        trace += [list(state), *state.values(), *(p.grad for p in model.parameters())]
    for optimizer in run.optimizers:
        state = optimizer.state_dict()
        trace.append(state["param_groups"])
        for index in state["state"]:
            trace += state["state"][index].values()
    kind, keys, *rest = np.random.get_state()
    return [*trace, torch.get_rng_state(), random.getstate(), kind, keys.tolist(), rest]


def digest(trace):
    """One number for all of it, the same only if every bit is."""
    found = hashlib.sha256()
    for item in trace:
        found.update(repr(_plain(item)).encode())
    return found.hexdigest()


def _plain(item):
    if isinstance(item, torch.Tensor):
        local = item.to_local() if hasattr(item, "to_local") else item
        local = local.to_dense() if local.layout != torch.strided else local
        local = torch.view_as_real(local) if local.is_complex() else local
        return (str(local.dtype), tuple(local.shape), local.detach().double().flatten().tolist())
    return [_plain(part) for part in item] if isinstance(item, (list, tuple)) else item


if __name__ == "__main__":
    torch.set_num_threads(1)
    seed()
    started = SITUATIONS[sys.argv[1]]()
    print(digest(train(started)))
    started.end()
