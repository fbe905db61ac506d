"""The weight layers of a watched model in the order in which they ran, and what lies between them."""

from collections.abc import Container, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from trimtab.recording import Record, Series, split_call

OPERATIONS = {
    "Relu": "relu", "LeakyRelu": "leaky_relu", "Tanh": "tanh", "Sigmoid": "sigmoid", "Gelu": "gelu", "Silu": "silu", "Elu": "elu",
    "Softplus": "softplus", "Hardtanh": "hard_tanh", "Mish": "mish", "Hardswish": "hard_swish", "Threshold": "relu",
    "LogSigmoid": "log_sigmoid", "Hardsigmoid": "hard_sigmoid",
}  # fmt: skip
"""Activation by autograd's name of the operation."""

CLASSES = {
    "ReLU": "relu", "LeakyReLU": "leaky_relu", "PReLU": "prelu", "Tanh": "tanh", "Sigmoid": "sigmoid", "GELU": "gelu", "SiLU": "silu",
    "ELU": "elu", "SELU": "selu", "CELU": "elu", "Softplus": "softplus", "Hardtanh": "hard_tanh", "ReLU6": "relu6", "Mish": "mish",
    "Hardswish": "hard_swish", "Softsign": "softsign", "LogSigmoid": "log_sigmoid", "Hardsigmoid": "hard_sigmoid", "Tanhshrink": "tanhshrink",
}  # fmt: skip
"""Activation by the class of its module."""

NORMS = ("BatchNorm", "LayerNorm", "GroupNorm", "InstanceNorm", "RMSNorm", "SyncBatchNorm", "LocalResponseNorm")
NORM_OPERATIONS = (
    "NativeBatchNorm",
    "NativeLayerNorm",
    "NativeGroupNorm",
    "CudnnBatchNorm",
    "FusedRmsNorm",
    "MiopenBatchNorm",
)
RECURRENT = ("RNN", "LSTM", "GRU", "RNNCell", "LSTMCell", "GRUCell")
MAX_HOPS = 4
"""Modules between two layers that are looked through; beyond that it is another story."""

IDLE = ("Identity", "Flatten", "Unflatten")
"""Modules that change no number."""

EMBEDDINGS = ("Embedding", "EmbeddingBag")


@dataclass(frozen=True, slots=True)
class Between:
    """What a signal meets on its way into a layer.

    Attributes:
        activations: Activations by name, nearest to the layer first.
        modules: Names of the activation modules among them ("" for functional ones).
        norms: Names of norm modules on the way ("" for functional ones).
        others: Whatever else changes the numbers: poolings, dropouts, arithmetic, modules that nothing is known of.
        joins: Whether branches are added, concatenated or multiplied.
        sources: Weight layers it comes from.
    """

    activations: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()
    norms: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    joins: bool = False
    sources: tuple[str, ...] = ()


@dataclass(slots=True)
class Layer:
    """A module with a weight of its own that ran.

    Attributes:
        model: Index of its model.
        name: Its name in the model.
        cls: Its class.
        order: Its place in the order of the forward pass.
        weight: Name of its weight.
        bias: Name of its bias, "" when it has none.
        shape: Shape of the weight.
        trainable: Whether the weight is to be trained.
        attributes: The module's plain attributes.
        before: What lies between it and the layers before it.
        output: Readings of its output.
        gradient: Readings of the gradient at its output.
        values: Readings of its weight.
        updates: Readings of what the steps added to its weight.
    """

    model: int
    name: str
    cls: str
    order: int
    weight: str
    bias: str
    shape: tuple[int, ...]
    trainable: bool
    attributes: Mapping[str, Any]
    before: Between
    output: Series
    gradient: Series
    values: Series
    updates: Series
    after: Between = field(default_factory=Between)

    @property
    def fan_in(self) -> float:
        """Values that one output sums, on average where a stride spreads them."""
        if "Transpose" in self.cls:  # its weight is (in, out / groups, ...)
            spread = np.prod(self.attributes.get("stride", 1)) * self.attributes.get("groups", 1)
            return float(self.shape[0] * np.prod(self.shape[2:]) / spread)
        return float(np.prod(self.shape[1:]))

    @property
    def recurrent(self) -> bool:
        """Whether it runs along time."""
        return self.cls in RECURRENT

    def at(self, series: Series, step: int) -> np.ndarray | None:
        """The row of `series` at `step`, None when it was not seen then."""
        found = np.flatnonzero(series.steps == step)
        return series.rows[found[0]] if len(found) else None


EMPTY = Series(np.zeros(0, dtype=np.int64), np.zeros((0, 7)))


def is_norm(cls: str) -> bool:
    """Whether a class is a normalization, by its name."""
    return cls.startswith(NORMS) or cls.endswith("Norm") or "LayerNorm" in cls


def layers(record: Record) -> list[Layer]:
    """The weight layers of every active model, in the order in which they ran at the first step.

    Args:
        record: The record.

    Returns:
        Layers with their series; norms and embeddings are not among them.
    """
    found: list[Layer] = []
    for model, facts in enumerate(record.models):
        if facts.get("active", True):
            found += _of_model(record, model, facts)
    return found


def _of_model(record: Record, model: int, facts: dict[str, Any]) -> list[Layer]:
    links = links_of(record, model)
    modules = facts["modules"]
    order = {name: i for i, name in enumerate(links)}
    names = [name for name in links if weight_of(modules.get(name), name, facts)]
    names += [name for name in modules if name not in links and weight_of(modules[name], name, facts)]
    weighted = set(names)
    found = []
    for name in names:
        weight = weight_of(modules[name], name, facts)
        prefix = f"{name}." if name else ""
        bias = next((prefix + b for b in modules[name]["parameters"] if b.startswith("bias")), "")
        parameter = facts["parameters"][weight]
        found.append(
            Layer(
                model=model,
                name=name,
                cls=modules[name]["class"],
                order=order.get(name, len(order)),
                weight=weight,
                bias=bias,
                shape=tuple(parameter["shape"]),
                trainable=parameter["trainable"],
                attributes=modules[name]["attributes"],
                before=_walk_back(name, links, modules, weighted),
                output=_series(record, model, name, "output"),
                gradient=_series(record, model, name, "gradient"),
                values=_series(record, model, weight, "parameter"),
                updates=_series(record, model, weight, "update"),
            )
        )
    by_name = {layer.name: layer for layer in found}
    for layer in found:
        for source in layer.before.sources:
            if source in by_name:
                by_name[source].after = layer.before
    return found


def _series(record: Record, model: int, name: str, kind: Any) -> Series:
    site = record.site(model, name, kind)
    return EMPTY if site is None else record.series(site)


def weight_of(module: dict[str, Any] | None, name: str, facts: dict[str, Any]) -> str:
    """The name of a module's matrix of weights.

    Args:
        module: Facts of the module, None where there are none.
        name: Its name.
        facts: Facts of its model.

    Returns:
        "" when it has none or is a norm or an embedding.
    """
    if module is None or is_norm(module["class"]) or module["class"] in EMBEDDINGS:
        return ""
    for own in module["parameters"]:
        full = f"{name}.{own}" if name else own
        parameter = facts["parameters"].get(full)
        if parameter is not None and len(parameter["shape"]) >= 2 and "weight" in own:
            return full
    return ""


def links_of(record: Record, model: int) -> dict[str, dict[str, Any]]:
    """Where the input of each module's calls came from at the first step that was looked at in detail, in forward order.

    Args:
        record: The record.
        model: Index of the model.

    Returns:
        Link by call ("relu" for the first of a module, "relu#2" for the next that takes its input from elsewhere), sources
        likewise and without the model's index; modules of other models are left out. A layer with a matrix of its own is
        one place, however often it is called.
    """
    prefix = f"{model}:"
    merged: dict[str, dict[str, Any]] = {}
    for _, links in record.details.get("links", []):
        for key, link in links.items():
            name = key.removeprefix(prefix)
            if key.startswith(prefix) and name not in merged:
                sources = [s.removeprefix(prefix) for s in link["sources"] if s.startswith(prefix)]
                merged[name] = link | {"sources": sources}
    return merged


def module_of(call: str, modules: Container[str]) -> str:
    """The module of a call.

    Args:
        call: Name of a call, as in `links_of`.
        modules: Names of the model's modules.

    Returns:
        The module's name.
    """
    return call if call in modules else split_call(call)[0]


def _walk_back(name: str, links: dict[str, Any], modules: dict[str, Any], weighted: set[str]) -> Between:
    activations: list[str] = []
    activation_modules: list[str] = []
    norms: list[str] = []
    others: list[str] = []
    sources: list[str] = []
    joins = False
    queue, seen = [(name, 0)], {name}
    while queue:
        current, hops = queue.pop(0)
        link = links.get(current)
        if link is None or hops > MAX_HOPS:
            continue
        functions = [OPERATIONS[name] for name in link["operations"] if name in OPERATIONS]
        activations += functions
        activation_modules += [""] * len(functions)
        norms += ["" for name in link["operations"] if name in NORM_OPERATIONS]
        others += [name for name in link["operations"] if name not in OPERATIONS and name not in NORM_OPERATIONS]
        joins = joins or len(link["sources"]) > 1
        for source in link["sources"]:
            if source in weighted:
                if source not in sources:
                    sources.append(source)
                continue
            if source in seen:
                continue
            seen.add(source)
            module = module_of(source, modules)
            cls = modules.get(module, {}).get("class", "")
            if cls in CLASSES:
                activations.append(CLASSES[cls])
                activation_modules.append(module)
            elif is_norm(cls):
                norms.append(module)
            elif _changes(modules.get(module, {})):
                others.append(module)
            queue.append((source, hops + 1))
    return Between(tuple(activations), tuple(activation_modules), tuple(norms), tuple(others), joins, tuple(sources))


def _changes(module: Mapping[str, Any]) -> bool:
    """Whether a module does something to the numbers that its parts do not tell."""
    idle = module.get("class") in IDLE or ("Dropout" in module.get("class", "") and module["attributes"].get("p") == 0)
    return bool(module.get("leaf", True)) and not idle
