"""Signal, gradient and update size of every layer at every step: the heat maps."""

import numpy as np
from numpy.typing import NDArray

from trimtab._messages import say
from trimtab.diagnosis.charting.thinned import columns
from trimtab.diagnosis.layers import module_of
from trimtab.diagnosis.view import View
from trimtab.recording import Record, Site
from trimtab.report.charts import Chart, HeatMap


def flows(view: View) -> tuple[list[Chart], list[str]]:
    """Heat maps of layer by recorded step, all with the same columns."""
    record = view.record
    modules = _modules(view)
    outputs = [site for place in modules if (site := record.site(*place, "output")) is not None]
    gradients = [site for place in modules if (site := record.site(*place, "gradient")) is not None]
    if not outputs or not len(record.steps):
        return [], []
    shown = columns(_logs(record, [*outputs, *gradients]))
    steps = record.steps[shown].astype(np.float64)
    charts: list[Chart] = []
    for key, title, sites, caption in (
        ("signal", say("Signal"), outputs, say("Root mean square of each module's output, the first module on top.")),
        (
            "gradient",
            say("Gradient"),
            gradients,
            say("Root mean square of the gradient of the loss at each module's output."),
        ),
    ):
        if sites:
            values = np.stack([_rms(record, site, shown) for site in sites])
            names = [name_of(view, site.model, site.name) for site in sites]
            charts.append(_map(key, title, steps, names, values, say("root mean square"), caption))
    updates = _updates(view, modules, shown)
    if updates:
        charts.append(
            _map(
                "update",
                say("Update size"),
                steps,
                list(updates),
                np.stack(list(updates.values())),
                say("norm of the update / norm of the weights"),
                say("How far one step moves the parameters of each module, relative to their size."),
            )
        )
    notes = []
    if len(shown) < len(record.steps):
        notes.append(
            say(
                "Thinned: the heat maps show {shown:,} of {all:,} recorded steps; of each stretch the one that stands out most.",
                shown=len(shown),
                all=len(record.steps),
            )
        )
    return charts, notes


def _map(
    key: str,
    title: str,
    steps: NDArray[np.float64],
    names: list[str],
    values: NDArray[np.float32],
    unit: str,
    caption: str,
) -> HeatMap:
    return HeatMap(
        key=key,
        section="flow",
        title=title,
        columns=steps,
        rows=tuple(names),
        values=values,
        x_label=say("recorded step"),
        y_label=say("module, in the order of the forward pass"),
        unit=unit,
        caption=caption,
    )


def name_of(view: View, model: int, name: str) -> str:
    """The name of a module for a chart; with its class where it is a mere number in a container."""
    cls = view.class_of(model, name)
    label = view.record.label(model, name)
    numbered = module_of(name, view.record.models[model]["modules"]).rpartition(".")[2].isdigit()
    return f"{label} {cls}".rstrip() if numbered else label or cls


def _modules(view: View) -> list[tuple[int, str]]:
    """Modules without parts, and those with parameters of their own, in the order of the forward pass."""
    found: list[tuple[int, str]] = []
    for model in view.active:
        modules = view.record.models[model]["modules"]
        seen = [site.name for site in view.record.of_kind("output") if site.model == model]
        ran = [name for name in view.forward_order(model) if name in modules]
        for name in dict.fromkeys([*ran, *seen]):
            facts = modules.get(module_of(name, modules), {})
            if facts.get("leaf", True) or facts.get("parameters"):
                found.append((model, name))
    return found


def _logs(record: Record, sites: list[Site]) -> NDArray[np.float32]:
    """log10 of the mean square at each recorded step, shape (steps, sites): NaN where nothing was seen, infinite where it was not finite."""
    found = np.empty((len(record.steps), len(sites)), dtype=np.float32)
    for i, site in enumerate(sites):
        found[:, i] = np.log10(_rms(record, site, None)) * 2
    return found


def _rms(record: Record, site: Site, rows: NDArray[np.int64] | None) -> NDArray[np.float32]:
    readings = record.readings[:, site.index] if rows is None else record.readings[rows, site.index]
    root = np.sqrt(readings[:, 1].astype(np.float64) ** 2 + readings[:, 2].astype(np.float64) ** 2)
    root[readings[:, 0] == 0] = np.nan
    root[readings[:, 6] > 0] = np.inf
    return root.astype(np.float32)


def _updates(view: View, modules: list[tuple[int, str]], rows: NDArray[np.int64]) -> dict[str, NDArray[np.float32]]:
    """Relative update of all parameters that a module has itself, by its name."""
    record = view.record
    found = {}
    for model, name in modules:
        moved, size = np.zeros(len(rows)), np.zeros(len(rows))
        seen, spoilt = np.zeros(len(rows), dtype=bool), np.zeros(len(rows), dtype=bool)
        for parameter in record.models[model]["modules"].get(name, {}).get("parameters", ()):
            full = f"{name}.{parameter}" if name else parameter
            update, value = record.site(model, full, "update"), record.site(model, full, "parameter")
            if update is not None and value is not None:
                moved += record.squares(update.index)[rows]
                size += record.squares(value.index)[rows]
                seen |= record.readings[rows, update.index, 0] > 0
                spoilt |= record.readings[rows, update.index, 6] > 0
        if (seen | spoilt).any():
            ratio = np.sqrt(moved / np.where(size > 0, size, np.nan))
            ratio[~seen] = np.nan
            ratio[spoilt] = np.inf
            found[name_of(view, model, name)] = ratio.astype(np.float32)
    return found
