"""`trimtab predict`."""

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click

from trimtab.cli.shown import showing_the_users_errors

PLAIN = ("weight_var", "bias_var", "depth", "width", "input_q", "input_c")
"""Options of a plain net, which a setup has no use for."""


@click.command(
    epilog="\b\nExamples:\n  trimtab predict setups.py:make_setup --figure depth.png\n"
    "  trimtab predict setups.py:make_setup --format json --output prediction.json\n"
    "  trimtab predict --activation tanh --weight-var 1.5 --bias-var 0.05 --depth 50",
)
@click.argument("target", metavar="[FILE.py:FACTORY]", required=False)
@click.option("--seed", type=int, help="Seed for the factory. [default: 0]")
@click.option(
    "--activation", metavar="NAME", help="In place of a setup: a plain net of this activation, by theory alone."
)
@click.option("--weight-var", type=float, help="Its weight variance times fan-in. [default: the critical one]")
@click.option("--bias-var", type=float, help="Its bias variance. [default: 0]")
@click.option("--depth", type=click.IntRange(1, 1000), help="Its layers. [default: 50]")
@click.option("--width", type=click.IntRange(min=2), help="Units of each, for the bands. [default: 256]")
@click.option("--input-q", type=float, help="Mean square of its input. [default: 1]")
@click.option("--input-c", type=float, help="Correlation of two inputs. [default: 0]")
@click.option("--format", "form", type=click.Choice(("text", "json")), default="text", help="Form. [default: text]")
@click.option("--output", metavar="FILE", help="Write the table to FILE; - is standard output.")
@click.option("--figure", metavar="FILE", help="Draw signal and gradient by depth to FILE: PNG, or .svg, .pdf.")
def predict(
    target: str | None, seed: int | None, form: str, output: str | None, figure: str | None, **plain: Any
) -> Callable[[], int]:
    """Foretell signal and gradient, layer by layer.

    Of a setup's model: at every site, beside what its first batch measures; no step is taken. Of a plain fully connected net, named by its
    activation: q, the likeness of two inputs and the gradient, with fixed points, depth scales and the edge of chaos.

    Exit status: 0, or 2 at bad input.
    """
    name = plain.pop("activation")
    given = {option: value for option, value in plain.items() if value is not None}
    _check_usage(target, seed, name, given)

    def action() -> int:
        found, text = _of_setup(target, seed or 0, form) if target is not None else _of_plain_net(name, given, form)
        _hand_out(found, text, output, figure)
        return 0

    return showing_the_users_errors(action)


def _check_usage(target: str | None, seed: int | None, name: str | None, given: dict[str, Any]) -> None:
    words = {option: f"--{option.replace('_', '-')}" for option in PLAIN}
    if target is None and name is None:
        alone = f" beside {words[next(iter(given))]}" if given else ""
        raise click.UsageError(f"give FILE.py:FACTORY or --activation NAME{alone}")
    if target is not None and (name is not None or given):
        option = "--activation" if name is not None else words[next(iter(given))]
        raise click.UsageError(f"FILE.py:FACTORY and {option} exclude each other: a setup has its own net")
    if name is not None and seed is not None:
        raise click.UsageError("--activation and --seed exclude each other: theory draws nothing")


def _of_setup(target: str, seed: int, form: str) -> tuple[Any, str]:
    from trimtab.cli.setups import load_setup
    from trimtab.prediction import predict_setup

    found = predict_setup(load_setup(target, seed))
    return found.figure, found.to_json() if form == "json" else str(found).rstrip("\n")


def _of_plain_net(name: str, given: dict[str, Any], form: str) -> tuple[Any, str]:
    from trimtab.errors import UsageError
    from trimtab.propagation import depth_figure, edge_of_chaos, plain_net
    from trimtab.report.json import SCHEMA, strict

    settings = {"depth": 50} | given
    if "weight_var" not in settings:
        point = edge_of_chaos(name, settings.get("bias_var", 0.0))
        if point is None:
            raise UsageError(f"{name} has no edge of chaos at this bias variance; name a --weight-var")
        settings["weight_var"] = point.weight_var
    net = plain_net(name, **settings)
    data = {"schema": SCHEMA, **strict(net.to_dict())}
    text = json.dumps(data, indent=2, ensure_ascii=False, allow_nan=False) if form == "json" else str(net)
    return lambda path: depth_figure(net, path), text


def _hand_out(draw: Callable[[str], Any], text: str, output: str | None, figure: str | None) -> None:
    from trimtab.errors import UsageError
    from trimtab.report.words import plain
    from trimtab.report.writing import write

    try:
        if figure is not None:
            draw(figure)
        if output not in (None, "-"):
            Path(str(output)).write_text(text + "\n", encoding="utf-8")
    except OSError as error:
        raise UsageError(f"cannot write {error.filename or output or figure}: {error.strerror}") from error
    if output in (None, "-"):
        try:
            text.encode(sys.stdout.encoding or "utf-8")
        except UnicodeEncodeError:
            text = plain(text)
        write(text, sys.stdout)
