"""Every example of docs/integrations.md runs, each in a process of its own; the table names the series there are."""

import os
import re
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "integrations.md"
TEXT = PAGE.read_text(encoding="utf-8")
EXAMPLES = dict(re.findall(r"^## ([^\n]+)\n\n```python\n(.*?)^```", TEXT, re.MULTILINE | re.DOTALL))
ALONE = {
    "WANDB_SILENT": "true",
    "WANDB_MODE": "offline",
    "MLFLOW_DISABLE_TELEMETRY": "true",
    "MLFLOW_ALLOW_FILE_STORE": "true",
    "HF_HUB_OFFLINE": "1",
    "OMP_NUM_THREADS": "1",
}


def test_there_is_one_example_a_library():
    assert list(EXAMPLES) == ["Lightning", "Transformers", "accelerate", "TensorBoard", "Weights & Biases", "MLflow"]


@pytest.mark.parametrize("library", EXAMPLES)
def test_the_example_runs(library, shell):
    shell.write("example.py", EXAMPLES[library])
    environment = ALONE | {"MLFLOW_TRACKING_URI": (shell.folder / "mlruns").as_uri()}
    done = shell.plain("example.py", env=os.environ | environment)
    assert done.status == 0, done.err[-2000:]
    if "healthy" in EXAMPLES[library]:
        assert done.out.splitlines()[-1] == "True"


def test_the_table_names_the_series():
    from integrations_cases import Run

    import trimtab
    from trimtab.integrations.series import series

    run = Run()
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        run.train()
    named = {name.split("/")[1] for name in re.findall(r"`(trimtab/[\w/]+)`", TEXT)} - {"step"}
    assert named == {name.split("/")[1] for _, name, _ in series(watch.record)}
