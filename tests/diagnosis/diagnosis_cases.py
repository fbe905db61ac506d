"""Records for the rules: made by hand, reading by reading, or left by a real run."""

import numpy as np
import torch

from trimtab.diagnosis.view import View
from trimtab.prediction.riding import Ride
from trimtab.recording import Record, Recorder, Schedule, Store


def watched(setup, every=1):
    """The record of a setup trained to its end."""
    store = Store()
    recorder = Recorder(store, Schedule(every), type(setup.model).__name__, Ride)
    recorder.add_model(setup.model)
    for optimizer in setup.optimizers:
        recorder.add_optimizer(optimizer)
    recorder.start()
    try:
        for _ in setup.train(on_batch=recorder.batch):
            pass
    finally:
        recorder.close()
    assert recorder.fault is None
    return Record.of(store)


def row(size=1.0, mean=0.0, count=64, nonfinite=0):
    """A reading of `count` values with this root mean square and mean."""
    spread = max(size**2 - mean**2, 0.0)
    return [count, mean, spread * count, size, 2 * size, 0, nonfinite]


def fresh_quantiles(shape, seed=0):
    """The sketch of a weight drawn by torch's default."""
    fan_in = np.prod(shape[1:])
    draws = np.random.default_rng(seed).uniform(-1, 1, int(np.prod(shape))) / np.sqrt(fan_in)
    return np.quantile(draws, np.linspace(0, 1, 33)).tolist()


def trained_quantiles(shape, seed=0):
    """The sketch of a weight with the heavy tails that training gives."""
    draws = 0.1 * np.random.default_rng(seed).standard_t(3, int(np.prod(shape)))
    return np.quantile(draws, np.linspace(0, 1, 33)).tolist()


class Made:
    """A record of a chain of linear layers with ReLUs between, named a, a_act, b, b_act, c, ..., that does nothing remarkable.

    Every step is recorded. Change what matters, then ask for the `view`.
    """

    def __init__(self, layers="abc", steps=30, width=16, loss=None, optimizer="SGD", act="ReLU"):
        self.layers, self.steps, self.width = list(layers), steps, width
        self.losses = list(np.geomspace(2.3, 0.3, steps)) if loss is None else list(loss)
        self.rates = [0.1] * len(self.losses)
        self.stepped = [1] * len(self.losses)
        self.active = True
        self.modules = {"": self._module("Sequential", leaf=False)}
        self.parameters, self.links, self.series = {}, {}, {}
        before = []
        for i, name in enumerate(self.layers):
            self.modules[name] = self._module("Linear", ["weight", "bias"])
            self.links[name] = {"operations": [], "sources": before, "own": "Addmm"}
            before = [name]
            for own, shape in (("weight", [width, width]), ("bias", [width])):
                self.parameters[f"{name}.{own}"] = self._parameter(name, shape)
                self.set(f"{name}.{own}", "parameter", row(0.1, count=int(np.prod(shape))))
                self.set(f"{name}.{own}", "update", row(1e-3, count=int(np.prod(shape))))
                for kind in ("raw-gradient", "parameter-gradient"):
                    self.set(f"{name}.{own}", kind, row(1e-2, count=int(np.prod(shape))))
            self.set(name, "output", row())
            self.set(name, "gradient", row(1e-2))
            if i < len(self.layers) - 1:
                self.modules[f"{name}_act"] = self._module(act)
                self.links[f"{name}_act"] = {"operations": [], "sources": [name], "own": "Relu"}
                before = [f"{name}_act"]
        self.set("input[0]", "input", row())
        self.details = {"distinct": {f"0:{n}.weight": [width, width] for n in self.layers}}
        self.details["loss"] = {
            "operations": ["NllLoss", "LogSoftmax"],
            "sources": [f"0:{self.layers[-1]}"],
            "kind": "NllLoss",
            "softmax": None,
            "prediction": {"shape": [64, 10], "mean": 0.0, "std": 0.3},
        }
        self.units, self.channels = {}, {}
        self.uncleared = [[] for _ in range(steps)]
        self.optimizer = optimizer
        self.settings = {"lr": 0.1}

    @staticmethod
    def _module(cls, parameters=(), leaf=True):
        return {
            "class": cls,
            "library": True,
            "bases": [],
            "training": True,
            "attributes": {},
            "parameters": list(parameters),
            "leaf": leaf,
        }

    @staticmethod
    def _parameter(owner, shape):
        return {
            "shape": shape,
            "dtype": "float32",
            "trainable": True,
            "owner": owner,
            "registered": True,
            "optimized": True,
            "updated": False,
        }

    def set(self, name, kind, value):
        """One reading for all steps, or one a step; None takes the site away."""
        if value is None:
            self.series.pop((name, kind), None)
            return
        rows = np.asarray(value, dtype=float)
        self.series[name, kind] = np.tile(rows, (self.steps, 1)) if rows.ndim == 1 else rows

    def look(self, name, units=16, silent=0, constant=0, signal=0.5, edge=0.0, kind="output", steps=None):
        """Unit summaries at the steps that are looked at in detail; lists are one a look."""
        steps = [s for s in range(self.steps) if Schedule(1).details(s)] if steps is None else steps
        columns = [np.broadcast_to(v, len(steps)) for v in (units, silent, constant, signal, edge, 0)]
        self.set(name, kind, row()) if (name, kind) not in self.series else None
        self.units[name, kind] = [(s, np.array(values)) for s, *values in zip(steps, *columns, strict=True)]

    @property
    def record(self):
        store, sites = Store(), list(self.series)
        index = {site: i for i, site in enumerate(sites)}
        store.facts({
            "name": "made",
            "models": [{
                "label": "Sequential", "class": "Sequential", "active": self.active,
                "modules": self.modules, "parameters": self.parameters,
            }],
            "optimizers": [{
                "label": "", "class": self.optimizer, "bases": [self.optimizer, "Optimizer", "object"],
                "groups": [{"settings": self.settings, "parameters": list(self.parameters)}],
            }],
        })  # fmt: skip
        store.commit(
            sites=[(i, 0, *site) for i, site in enumerate(sites)],
            losses=[(i, *row) for i, row in enumerate(zip(self.losses, self.rates, self.stepped, strict=True))],
            units=[(s, index[site], 1, values) for site, looks in self.units.items() for s, values in looks],
            channels=[(0, index[site], np.asarray(rows, dtype=float)) for site, rows in self.channels.items()],
            details=[
                (s, key, value)
                for key, value in self.details.items()
                for s in (range(3) if key == "distinct" else (0,))
            ]
            + [
                (
                    0,
                    "links",
                    {
                        f"0:{n}": link | {"sources": [f"0:{s}" for s in link["sources"]]}
                        for n, link in self.links.items()
                    },
                )
            ],
        )
        for step in range(self.steps):
            info = {"passes": 1, "optimizers": 1, "uncleared": self.uncleared[step], "training": True, "rates": [[0.1]]}
            rows = np.stack([self.series[site][step] for site in sites])
            store.commit(step=(step, float(step), info, rows))
        return Record.of(store)

    @property
    def view(self):
        return View(self.record)


def findings(rule, made):
    """What a rule says of a made record."""
    with np.errstate(all="ignore"):
        return list(rule.find(made.view if isinstance(made, Made) else View(made)))


def only(rule, made):
    """The one finding of a rule, and where in time it begins."""
    found = findings(rule, made)
    assert len(found) == 1, found
    return found[0]


def stuck(steps=30, at=2.3):
    """A loss that goes nowhere."""
    return [at + 0.001 * (-1) ** i for i in range(steps)]


def evidence(finding, words):
    """The piece of evidence whose name begins with these words, or the first that has them in it."""
    return next(
        e for e in (*(e for e in finding.evidence if e.name.startswith(words)), *finding.evidence) if words in e.name
    )


def gradients(net, x, loss):
    """Outputs of the layers of a chain and the gradients there, by autograd in float64."""
    net, x = net.double(), x.double()
    seen, z = [], x
    for module in net:
        z = module(z)
        z.retain_grad()
        seen.append(z)
    loss(z).backward()
    return seen, [z.grad for z in seen]


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)
