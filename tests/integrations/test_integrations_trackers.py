"""TensorBoard, Weights & Biases, MLflow: what was written is read back by the library's own reader, or from its file."""

import json

import pytest
from integrations_cases import Run, wandb_records, wandb_rows

import trimtab
from trimtab.errors import UsageError
from trimtab.integrations.series import series


def watched(sink, steps=4):
    run = Run(rate=1e4)  # it explodes, so that there is something to tell
    with trimtab.watch(run.model, run.optimizer, every=1) as watch:
        for _ in range(steps):
            run.train()
            sink.update(watch)
    diagnosis = sink.finish(watch)
    assert not diagnosis.healthy
    return watch, diagnosis


def finite(points):
    return {(step, name): value for step, name, value in points if value == value}


def test_tensorboard(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from trimtab.integrations import tensorboard

    with SummaryWriter(str(tmp_path)) as writer:
        watch, diagnosis = watched(tensorboard.Sink(writer))
    events = EventAccumulator(str(tmp_path), size_guidance={"scalars": 0, "tensors": 0, "images": 0}).Reload()
    read = {(e.step, name): e.value for name in events.Tags()["scalars"] for e in events.Scalars(name)}
    expected = finite(series(watch.record))
    assert {key for key in read if read[key] == read[key]} == set(expected)
    for key, value in expected.items():
        assert read[key] == pytest.approx(value, rel=1e-6)
    assert events.Tags()["images"] == ["trimtab/flow"]
    assert events.Tags()["histograms"] == []
    text = events.Tensors("trimtab/diagnosis/text_summary")[0].tensor_proto.string_val[0].decode()
    assert str(diagnosis).splitlines()[0] in text


def test_tensorboard_histograms_when_asked(tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from torch.utils.tensorboard import SummaryWriter

    from trimtab.integrations import tensorboard

    run = Run()
    with SummaryWriter(str(tmp_path)) as writer:
        sink = tensorboard.Sink(writer, histograms=run.model)
        with trimtab.watch(run.model, run.optimizer, every=1) as watch:
            run.train(3)
            sink.update(watch)
    events = EventAccumulator(str(tmp_path)).Reload()
    assert sorted(events.Tags()["histograms"]) == [
        f"trimtab/weights/{n}" for n, _ in sorted(run.model.named_parameters())
    ]
    with pytest.raises(TypeError, match="SummaryWriter"):
        tensorboard.Sink(tmp_path)


def test_wandb(tmp_path, monkeypatch):
    monkeypatch.setenv("WANDB_SILENT", "true")
    import wandb

    from trimtab.integrations import wandb as trimtab_wandb

    with pytest.raises(UsageError, match="no run of wandb is active"):
        trimtab_wandb.Sink()
    run = wandb.init(mode="offline", dir=str(tmp_path), project="test")
    watch, diagnosis = watched(trimtab_wandb.Sink(run))
    assert any(tag.startswith("trimtab:") for tag in run.tags)
    run.finish()
    (path,) = tmp_path.rglob("*.wandb")
    rows = [row for row in wandb_rows(path) if "trimtab/loss" in row]
    assert [row["trimtab/step"] for row in rows] == watch.record.steps.tolist()
    read = {(row["trimtab/step"], name): value for row in rows for name, value in row.items()}
    for (step, name), value in finite(series(watch.record)).items():
        assert float(read[step, name]) == pytest.approx(value, rel=1e-6)
    summaries = [r.summary for r in wandb_records(path) if r.WhichOneof("record_type") == "summary"]
    told = {item.key or ".".join(item.nested_key): item.value_json for s in summaries for item in s.update}
    assert json.loads(told["trimtab/diagnosis"]) == str(diagnosis)


def test_mlflow(tmp_path, monkeypatch):
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setenv("MLFLOW_ALLOW_FILE_STORE", "true")
    monkeypatch.chdir(tmp_path)
    import mlflow

    from trimtab.integrations import mlflow as trimtab_mlflow

    mlflow.set_tracking_uri((tmp_path / "mlruns").as_uri())
    with pytest.raises(UsageError, match="no run of MLflow is active"):
        trimtab_mlflow.Sink()
    with mlflow.start_run() as active:
        watch, diagnosis = watched(trimtab_mlflow.Sink())
    client = mlflow.MlflowClient()
    read = client.get_run(active.info.run_id)
    assert read.data.tags["trimtab.root_cause"] == ", ".join(
        dict.fromkeys(f.code for f in diagnosis.roots if f.severity != "note")
    )
    history = {
        (metric.step, name): metric.value
        for name in read.data.metrics
        for metric in client.get_metric_history(active.info.run_id, name)
    }
    for key, value in finite(series(watch.record)).items():
        assert history[key] == pytest.approx(value, rel=1e-6)
    text = mlflow.artifacts.load_text(f"runs:/{active.info.run_id}/trimtab/diagnosis.txt")
    assert text == str(diagnosis)
    assert [a.path for a in client.list_artifacts(active.info.run_id, "trimtab")].count("trimtab/flow.png") == 1
