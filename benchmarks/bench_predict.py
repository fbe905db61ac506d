"""What `trimtab.predict` foretells of nets at initialization, beside what they do; and what it costs.

Errors are |log10(measured/predicted)| of second moments, medians over the sites and then over draws of the weights. "flat" takes every site for what the input (signal)
or the output (gradient) is: the prediction that nothing changes from layer to layer.
"""

import argparse
import math
import resource
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "prediction"))
import prediction_nets as nets
import prediction_random as drawn

from trimtab.prediction import predict

Make = Callable[[], tuple[nn.Module, Any]]


def cases() -> Iterator[tuple[str, Make]]:
    for name in nets.ACTIVATIONS:
        yield f"MLP {name}, torch default", partial(nets.mlp, name)
        yield f"MLP {name}, He or critical", partial(nets.mlp, name, critical=True)
    yield "VGG-like, BatchNorm", partial(nets.vgg, True)
    yield "VGG-like, He", partial(nets.vgg, False)
    yield "VGG-like, torch default", partial(nets.vgg, False, he=False)
    yield "ResNet-18-like, BatchNorm", partial(nets.resnet, True)
    yield "ResNet-18-like, He", partial(nets.resnet, False)
    for own in (False, True):
        for pre in (True, False):
            kind = "hand-written" if own else "nn.TransformerEncoderLayer"
            yield f"transformer {'pre' if pre else 'post'}-norm, {kind}", partial(nets.transformer, pre, own)
    for kind in ("LSTM", "GRU", "RNN"):
        yield f"{kind}, 100 steps, each read", partial(nets.recurrent, kind)
    yield "LSTM, 100 steps, the last read", partial(nets.recurrent, "LSTM", last=True)


def median(values: list[float]) -> float:
    good = [abs(v) for v in values if math.isfinite(v)]
    return statistics.median(good) if good else math.nan


def flat(values: list[float], reference: float) -> float:
    return median([math.log10(v / reference) for v in values if v > 0 and math.isfinite(v)])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", default="")
    parser.add_argument("--misses", action="store_true", help="name the sites that are off by more than 0.1")
    parser.add_argument("--table", action="store_true", help="print the whole prediction")
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    print(
        f"{'net':50}{'sites':>6}{'forward':>9}{'flat':>7}{'backward':>10}{'flat':>7}{'covered':>9}{'odd M':>7}{'s':>7}"
    )
    for name, make in cases():
        if arguments.only not in name:
            continue
        rows = []
        for seed in range(arguments.seeds):
            torch.manual_seed(seed)
            model, batch = make()
            start = time.perf_counter()
            found = predict(model, batch)
            spent = time.perf_counter() - start
            forward = median([s.forward_error for s in found.sites])
            backward = median([s.backward_error for s in found.sites])
            up = flat([s.forward_measured for s in found.sites], first_input(batch, found))
            back = flat([s.backward_measured for s in found.sites], found.sites[-1].backward_measured)
            out = sum(s.odd == "measurement" for s in found.sites)
            rows.append((len(found.sites), forward, up, backward, back, found.coverage, out, spent))
            if arguments.misses:
                for s in found.sites:
                    if abs(s.forward_error) > 0.1 or abs(s.backward_error) > 0.1:
                        print(f"      {s.name:30}{s.kind:16}{s.forward_error:8.3f}{s.backward_error:8.3f}")
            if arguments.table:
                print(found)
        n, forward, up, backward, back, covered, out, spent = (statistics.median(c) for c in zip(*rows, strict=True))
        print(
            f"{name:50}{n:6.0f}{forward:9.3f}{up:7.2f}{backward:10.3f}{back:7.2f}{covered:9.0%}{out:7.0f}{spent:7.2f}",
            flush=True,
        )
    if arguments.only in "cost":
        cost()
    if arguments.only in "random":
        calibration(400)


def calibration(count: int) -> None:
    """How many measurements of random nets lie in their band, and the size of their distance in its standard deviations."""
    outcomes = [drawn.outcome(seed) for seed in range(count)]
    print(
        f"\n{'random nets':16}{'nets':>6}{'signal':>9}{'gradient':>10}{'last':>8}{'rms':>6}{'first g.':>10}{'rms':>6}"
    )
    for kind in ("", *sorted({o.kind for o in outcomes})):
        some = [o for o in outcomes if kind in {"", o.kind}]
        found = drawn.coverage(some)
        last, first = (
            math.sqrt(statistics.fmean(v**2 for v in values))
            for values in ([o.forward[-1] for o in some], [o.backward[0] for o in some])
        )
        print(
            f"{kind or 'all':16}{len(some):6}{found['forward']:9.2%}{found['backward']:10.2%}{found['last site']:8.1%}"
            f"{last:6.2f}{found['first gradient']:10.1%}{first:6.2f}",
            flush=True,
        )


def first_input(batch: Any, found: Any) -> float:
    if batch[0].is_floating_point():
        return float(batch[0].square().mean())
    return float(found.sites[0].forward_measured)


def cost() -> None:
    """CPU time and memory of a prediction beside a forward and backward pass, on the ResNet-like net."""
    torch.manual_seed(0)
    model, (x,) = nets.resnet(size=64, batch=16)

    def train() -> None:
        model(x).square().sum().backward()
        model.zero_grad()

    def timed(call: Callable[[], Any], repeats: int) -> float:
        times = []
        for _ in range(repeats):
            start = time.process_time()
            call()
            times.append(time.process_time() - start)
        return statistics.median(times)

    train()
    passes = timed(train, 5)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    spent = timed(lambda: predict(model, x), 3)
    after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(
        f"\nResNet-18-like, batch 16 of 64x64: a pass {passes:.2f} s, predict {spent:.2f} s = {spent / passes:.1f} passes"
    )
    print(
        f"peak memory of the process: {before / 1024:.0f} MiB after training passes, {after / 1024:.0f} MiB after predict"
    )


if __name__ == "__main__":
    main()
