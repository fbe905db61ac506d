"""The Python of the pages in docs/norms and of the README runs, and gives the values that the pages show.

A block that holds `>>>` is a doctest, whose values are compared; any other is run. All blocks of a page share one namespace, so that a
reader can follow the page from its top.
"""

import doctest
import re
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import trimtab

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "norms").glob("*.md"))
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _apart(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


def blocks(page):
    """Each block of Python, with the number of its first line."""
    text = page.read_text(encoding="utf-8")
    for found in BLOCK.finditer(text):
        yield text.count("\n", 0, found.start()) + 2, found.group(1)


def run(page, names):
    """Run the blocks of a page, one after the other."""
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE | doctest.ELLIPSIS)
    parser = doctest.DocTestParser()
    for line, source in blocks(page):
        if ">>>" not in source:
            exec(compile("\n" * (line - 1) + source, str(page), "exec"), names)
            continue
        test = parser.get_doctest(source, names, page.name, str(page), line - 1)
        told = []
        runner.run(test, out=told.append, clear_globs=False)
        assert not told, "".join(told)
        names.update(test.globs)  # a doctest runs in a copy


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_the_python_of_a_page_runs_and_gives_what_the_page_shows(page):
    assert any(">>>" in source for _, source in blocks(page)) or page.stem == "README", "nothing on the page is checked"
    run(page, {"__name__": "page"})


def test_the_index_names_every_page():
    index = (ROOT / "docs" / "norms" / "README.md").read_text(encoding="utf-8")
    assert sorted(set(re.findall(r"\]\((\w[\w-]*\.md)\)", index))) == [p.name for p in PAGES if p.stem != "README"]


def test_a_value_that_is_wrong_is_told(tmp_path):
    page = tmp_path / "page.md"
    page.write_text("Text.\n\n```python\nx = 1\n```\n\n```python\n>>> x + 1\n3\n```\n", encoding="utf-8")
    with pytest.raises(AssertionError, match=r"(?s)page.md.*line 8.*Expected:\s+3\s+Got:\s+2"):
        run(page, {})


def test_the_python_of_the_readme_runs():
    """Its blocks take a model, an optimizer and data of the reader's, which stand here."""
    inputs, targets = torch.randn(64, 3, 8, 8) * 4 + 10, torch.randint(0, 4, (64,))
    model = nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(), nn.Linear(512, 4))

    def make_setup(seed):
        torch.manual_seed(seed)
        net = nn.Sequential(nn.Flatten(), nn.Linear(192, 4))
        data, labels = torch.randn(64, 3, 8, 8), torch.arange(64) % 4
        data[torch.arange(64), 0, 0, labels] += 3.0  # one pixel tells the class

        def evaluate(net):
            with torch.no_grad():
                return (net(data).argmax(1) == labels).float().mean().item()

        too_low = torch.optim.SGD(net.parameters(), lr=1e-6)
        loss = lambda net, batch: nn.functional.cross_entropy(net(batch[0]), batch[1])  # noqa: E731
        return trimtab.Setup(net, too_low, lambda: [(data, labels)], loss, steps=100, evaluate=evaluate)

    names = {
        "trimtab": trimtab,
        "make_setup": make_setup,
        "torch": torch,
        "F": nn.functional,
        "loss_function": nn.CrossEntropyLoss(),
        "model": model,
        "optimizer": torch.optim.SGD(model.parameters(), lr=0.01),
        "loader": DataLoader(TensorDataset(inputs, targets), batch_size=16),
        "x": inputs[:16],
        "X": inputs,
    }
    run(ROOT / "README.md", names)
    assert "learning rate" in str(names["prescription"].best.repair)
    assert names["folded"].max_difference < 1e-5
    assert not names["folded"].refused
    mean, std = inputs.mean((0, 2, 3), keepdim=True), inputs.std((0, 2, 3), correction=0, keepdim=True)
    torch.testing.assert_close(names["raw"](inputs), model((inputs - mean) / std), rtol=1e-3, atol=1e-3)
