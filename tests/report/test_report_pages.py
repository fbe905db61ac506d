"""The pages: complete, in one shape, and found by their code."""

import re

import pytest

from trimtab.errors import UsageError
from trimtab.report import UnknownCode, codes, page
from trimtab.report.pages import SECTIONS, languages, parse, title

CODES = [
    "vanishing-gradient",
    "exploding-gradient",
    "signal-collapse",
    "dead-units",
    "saturated-units",
    "symmetric-init",
    "nonfinite-data",
    "nonfinite-loss",
    "unscaled-inputs",
    "unscaled-targets",
    "ill-conditioned",
    "lipschitz-blowup",
    "loss-at-init-off",
    "loss-spike",
    "learning-rate-too-high",
    "learning-rate-too-low",
    "clipping-dominates",
    "missing-warmup",
    "attention-logit-growth",
    "output-logit-drift",
    "frozen-parameters",
    "missing-from-optimizer",
    "missing-zero-grad",
    "double-softmax",
    "broadcast-loss",
    "detached-graph",
    "loss-scale-underflow",
    "cross-sample-leak",
    "future-leak",
    "input-ignored",
    "cannot-overfit-one-batch",
    "rank-divergence",
    "duplicated-batches",
    "unequal-batches",
]


def test_every_code_has_its_page():
    assert set(CODES) <= set(codes())
    assert list(codes()) == sorted(codes())


@pytest.mark.parametrize("code", CODES)
def test_a_page_is_complete(code):
    read = page(code)
    assert read.code == code
    assert read.text.startswith(f"# {code}: {read.title}\n")
    assert tuple(read.sections) == SECTIONS
    assert all(len(body) > 40 for body in read.sections.values())
    assert 25 <= len(read.text.splitlines()) <= 60
    assert "<!--" not in read.text
    assert len(read.title) <= 72


@pytest.mark.parametrize("code", CODES)
def test_a_page_names_only_codes_that_exist(code):
    known = set(codes())
    named = re.findall(r"`([a-z]+(?:-[a-z]+)+)`", page(code).text)
    assert set(named) <= known
    assert code not in named


def test_titles():
    assert title("double-softmax") == page("double-softmax").title
    assert title("no-such-code") == ""


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("vanishing-gradients", "vanishing-gradient"),
        ("dead_units", "dead-units"),
        ("Double-Softmax", "double-softmax"),
        ("vanishing", "vanishing-gradient"),
    ],
)
def test_an_unknown_code_suggests_the_nearest(wrong, right):
    with pytest.raises(UnknownCode, match=f"Did you mean {right}") as error:
        page(wrong)
    assert error.value.suggestions[0] == right
    assert isinstance(error.value, UsageError)


@pytest.mark.parametrize("wrong", ["", "zzz", "../en/dead-units"])
def test_an_unknown_code_names_it_and_never_leaves_the_folder(wrong):
    with pytest.raises(UnknownCode, match="Unknown code"):
        page(wrong)


def test_languages():
    assert "en" in languages()
    with pytest.raises(UsageError, match="there are"):
        page("dead-units", "../..")


def test_parse_leaves_remarks_out_and_refuses_other_texts():
    read = parse("# a-b: T\n\n## Symptom\nx\n<!-- threshold -->\ny\n")
    assert read.sections["Symptom"] == "x\ny"
    with pytest.raises(ValueError, match="starts with"):
        parse("hello\n")
