"""Which layer is which: laws on random nets, and what a reader expects where names have shifted."""

from hypothesis import given
from hypothesis import strategies as st

from trimtab.report.alignment import Kind, aligned

NETS = st.lists(
    st.tuples(
        st.sampled_from("abcdef"), st.sampled_from(["Linear", "ReLU", "Norm"]), st.sampled_from([(), (3,), (5,)])
    ),
    max_size=9,
    unique_by=lambda layer: layer[0],
)


def known(net):
    return {name: Kind(name, cls, shapes) for name, cls, shapes in net}


def names(net):
    return [name for name, _, _ in net]


@given(NETS, NETS, st.booleans())
def test_every_layer_is_told_once_and_in_its_order(a, b, with_kinds):
    rows = aligned(names(a), names(b), *((known(a), known(b)) if with_kinds else ()))
    assert [i for i, _ in rows if i is not None] == list(range(len(a)))
    assert [k for _, k in rows if k is not None] == list(range(len(b)))
    assert (None, None) not in rows


@given(NETS, NETS)
def test_a_pair_has_a_class_or_a_name_in_common(a, b):
    for i, k in aligned(names(a), names(b), known(a), known(b)):
        if i is not None and k is not None:
            assert a[i][1] == b[k][1] or a[i][0] == b[k][0]


@given(NETS)
def test_a_net_beside_itself(net):
    assert aligned(names(net), names(net), known(net), known(net)) == [(i, i) for i in range(len(net))]


def plain(norm):
    """Layers of a Sequential, as many as there are, with or without a normalization in each of three blocks."""
    found = []
    for width in (8, 8, 8):
        for cls, shapes in (("Linear", ((width, width), (width,))), ("Norm", ((width,),)), ("ReLU", ())):
            if norm or cls != "Norm":
                found.append(Kind(str(len(found)), cls, shapes))
    return {kind.name: kind for kind in found}


def test_a_normalization_put_in_shifts_names_and_not_rows():
    a, b = plain(norm=False), plain(norm=True)
    rows = aligned(list(a), list(b), a, b)
    assert rows == [(0, 0), (None, 1), (1, 2), (2, 3), (None, 4), (3, 5), (4, 6), (None, 7), (5, 8)]
    by_name = [(i, k) for i, k in aligned(list(a), list(b)) if i is not None and k is not None]
    assert by_name == [(i, i) for i in range(6)]  # names alone would put a ReLU beside a normalization


def test_a_layer_in_the_place_of_another_of_its_name():
    a, b = {"norm": Kind("norm", "BatchNorm1d", ((8,),))}, {"norm": Kind("norm", "LayerNorm", ((8,),))}
    assert aligned(["norm"], ["norm"], a, b) == [(0, 0)]


def test_activations_of_two_kinds_of_nets_are_no_pair():
    a = {"0": Kind("0", "Linear", ((8, 8),)), "1": Kind("1", "ReLU")}
    b = {"stem": Kind("stem", "Conv2d", ((8, 3, 3, 3),)), "act": Kind("act", "ReLU")}
    assert aligned(list(a), list(b), a, b) == [(0, None), (1, None), (None, 0), (None, 1)]


def test_a_renamed_part_is_known_by_class_and_shape():
    a = {"encoder.fc": Kind("encoder.fc", "Linear", ((4, 8),)), "head": Kind("head", "Linear", ((2, 4),))}
    b = {"enc.fc": Kind("enc.fc", "Linear", ((4, 8),)), "head": Kind("head", "Linear", ((2, 4),))}
    assert aligned(list(a), list(b), a, b) == [(0, 0), (1, 1)]
