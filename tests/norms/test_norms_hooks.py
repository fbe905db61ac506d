"""Hooks of the user's run while a model is measured, since they may be part of it, and have noted nothing afterwards."""

import functools
from collections import defaultdict

import pytest
import torch
from torch import nn
from torch.nn.utils import prune

from trimtab import Standardizer, norms

X = torch.randn(32, 6, generator=torch.Generator().manual_seed(0))
FITTED = Standardizer().fit(X)
TARGETS = Standardizer().fit(X[:, :2])

SEEN: list = []
COUNT = 0


def net():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 2))


MEASURED = {
    "audit": lambda model: norms.audit(model, example=X),
    "convert": lambda model: norms.convert(model, "layer_norm", [X]),
    "fold": lambda model: norms.fold(model.eval(), X),
    "fold without an example": lambda model: norms.fold(model.eval()),
    "recalibrate": lambda model: norms.recalibrate(model, [X]),
    "recalibrate in one pass": lambda model: norms.recalibrate(model, [X], upstream="batch"),
    "recalibrate a copy": lambda model: norms.recalibrate(model, [X], inplace=False),
    "fold_into": lambda model: FITTED.fold_into(model.eval(), X),
    "fold_into a layer that is named": lambda model: FITTED.fold_into(model.eval(), X, layers=["0"]),
    "unfold": lambda model: FITTED.unfold(model.eval(), X),
    "fold_targets_into": lambda model: TARGETS.fold_targets_into(model.eval(), X),
}


def copy_of_lists(value):
    """A copy that can be compared: tensors by what they are, not by their numbers."""
    if isinstance(value, dict):
        return {name: copy_of_lists(item) for name, item in value.items()}
    return [copy_of_lists(item) for item in value] if isinstance(value, list) else id(value)


class Notes:
    def __init__(self):
        self.shapes, self.by_name, self.calls, self.last = [], defaultdict(list), 0, None

    def hook(self, module, args, output):
        self.shapes.append(output.shape)
        self.by_name[type(module).__name__].append(output)
        self.calls += 1
        self.last = output
        self.late = output

    __call__ = hook

    def state(self):
        return {name: copy_of_lists(value) for name, value in vars(self).items()}


def in_a_list():
    seen = ["before"]
    return lambda module, args, output: seen.append(output), lambda: copy_of_lists(seen)


def in_a_list_of_lists():
    seen = {"outputs": [["before"]]}
    return lambda module, args, output: seen["outputs"][0].append(output), lambda: copy_of_lists(seen)


def in_a_set():
    seen = {"before"}
    return lambda module, args, output: seen.add(id(output)), lambda: set(seen)


def in_a_variable():
    count = 0

    def hook(module, args, output):
        nonlocal count
        count += 1

    return hook, lambda: count


def in_a_global_list():
    return lambda module, args, output: SEEN.append(output), lambda: copy_of_lists(SEEN)


def in_a_global_variable():
    def hook(module, args, output):
        global COUNT
        COUNT += 1

    return hook, lambda: COUNT


def in_an_object():
    notes = Notes()
    return notes.hook, notes.state


def by_an_object():
    notes = Notes()
    return notes, notes.state


def by_a_partial():
    seen = []
    return functools.partial(lambda where, module, args, output: where.append(output), seen), lambda: copy_of_lists(
        seen
    )


def by_a_helper():
    seen = []

    def note(output):
        seen.append(output)

    return lambda module, args, output: note(output), lambda: copy_of_lists(seen)


WAYS = [
    in_a_list,
    in_a_list_of_lists,
    in_a_set,
    in_a_variable,
    in_a_global_list,
    in_a_global_variable,
    in_an_object,
    by_an_object,
    by_a_partial,
    by_a_helper,
]


@pytest.mark.filterwarnings("ignore::trimtab.norms.UnequalBatchesWarning")
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("measured", MEASURED)
def test_a_hook_that_looks_on_has_noted_nothing(measured, way):
    hook, state = way()
    model = net()
    for module in (model, model[0], model[2]):
        module.register_forward_hook(hook)
    with torch.no_grad():
        model(X)
    before = state()
    MEASURED[measured](model)
    assert state() == before
    model(X)
    assert state() != before, "the hook must be there still"


def test_a_hook_before_the_forward_has_noted_nothing():
    seen, model = [], net()
    model.register_forward_pre_hook(lambda module, args: seen.append(args))
    norms.recalibrate(model, [X])
    assert seen == []


def test_a_hook_that_fails_leaves_no_notes():
    seen, model = [], net()

    def hook(module, args, output):
        seen.append(output)
        if len(seen) == 2:
            raise KeyError("enough")

    model[0].register_forward_hook(hook)
    with pytest.raises(KeyError):
        norms.recalibrate(model, [X])
    assert seen == []


def test_attributes_of_a_users_module_are_put_back_but_not_its_parameters():
    class Extractor(nn.Module):
        def __init__(self):
            super().__init__()
            self.net, self.features = net(), {}
            self.net[2].register_forward_hook(self.keep)

        def keep(self, module, args, output):
            self.features["relu"] = output

        def forward(self, x):
            self.net(x)
            return self.features["relu"]

    model = Extractor()
    found = norms.recalibrate(model, [X])
    assert model.features == {}
    expected = norms.recalibrate(net(), [X]).layers[0]
    assert torch.equal(found.layers[0].mean, expected.mean)
    assert torch.equal(model.net[1].running_mean, expected.mean.float())
    assert model.training


def doubled(module, args, output):
    return 2 * output


def doubled_in_place(module, args, output):
    output.mul_(2)


@pytest.mark.parametrize("hook", [doubled, doubled_in_place])
def test_a_hook_that_changes_an_output_is_part_of_the_function(hook):
    model, plain = net(), net()
    model[0].register_forward_hook(hook)
    with torch.no_grad():
        plain[0].weight *= 2
        plain[0].bias *= 2
    expected = norms.recalibrate(plain, [X]).layers[0]
    found = norms.recalibrate(model, [X]).layers[0]
    torch.testing.assert_close(found.mean, expected.mean)
    torch.testing.assert_close(found.variance, expected.variance)
    assert norms.convert(model, "none", [X]).rms_output == pytest.approx(norms.convert(plain, "none", [X]).rms_output)


def test_what_one_hook_hands_to_the_forward_is_there_while_it_runs():
    """As in a U-Net whose decoder reads what a hook has stored of the encoder."""

    class Stored:
        value = None

        def hook(self, module, args, output):
            self.value = output

    class Skip(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder, self.norm, self.stored = nn.Linear(6, 6), nn.BatchNorm1d(6), Stored()
            self.encoder.register_forward_hook(self.stored.hook)

        def forward(self, x):
            self.encoder(x)
            return self.norm(x + self.stored.value)

    model = Skip()
    found = norms.recalibrate(model, [X]).layers[0]
    with torch.no_grad():
        expected = (X + model.encoder(X)).mean(0)
    torch.testing.assert_close(found.mean.float(), expected)
    assert norms.convert(model, "none", [X]).rms_change < 1e-5


@pytest.mark.filterwarnings("ignore:.*weight_norm.*is deprecated:FutureWarning")
@pytest.mark.parametrize(
    "computed",
    [
        lambda layer: nn.utils.weight_norm(layer),
        lambda layer: nn.utils.spectral_norm(layer),
        lambda layer: prune.l1_unstructured(layer, "weight", 0.5),
    ],
)
def test_hooks_that_compute_a_weight_run(computed):
    model = net()
    computed(model[0])
    with torch.no_grad():
        model.eval()(X)
        expected = model[0](X).mean(0)
    found = norms.recalibrate(model, [X]).layers[0]
    torch.testing.assert_close(found.mean.float(), expected)
