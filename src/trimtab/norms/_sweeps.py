"""The passes over the batches in which running statistics are pooled."""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any, TypeAlias

from torch import nn

from trimtab.errors import NormalizationError
from trimtab.norms._passes import Forward, run
from trimtab.norms._pooled import Pool

Pass: TypeAlias = Callable[[], Iterable[Any]]


class _Reached(BaseException):  # no Exception: a model's own `except Exception` must not swallow it
    """A forward pass has come to the layer that it was run for."""


def layer_by_layer(
    model: nn.Module, pools: dict[str, Pool], one_pass: Pass, forward: Forward
) -> list[tuple[str, bool]]:
    """Pool layer after layer: those before it normalize by their new running statistics already.

    Args:
        model: The model, in evaluation mode.
        pools: A pool for each layer, by name.
        one_pass: The batches.
        forward: How the model is called.

    Returns:
        The layers in the order of their first call, with whether their statistics are exact.
    """
    calls = _first_calls(model, pools, one_pass, forward)
    for name, often in calls.items():
        pool = pools[name]
        with pool.listening(stop=_Reached if often == 1 else None, own_batch=often > 1):
            for batch in one_pass():
                try:
                    run(forward, model, batch)
                except _Reached:
                    continue
        pool.finish()
        pool.write()
    return [(name, often == 1) for name, often in calls.items()]


def _first_calls(model: nn.Module, pools: dict[str, Pool], one_pass: Pass, forward: Forward) -> dict[str, int]:
    """Returns how often each layer is called on the first batch, in the order of the first calls."""
    calls: dict[str, int] = {}

    def before(name: str) -> Callable[[nn.Module, tuple[Any, ...], dict[str, Any]], None]:
        def hook(module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
            if len(args) == 1 and not kwargs:
                calls[name] = calls.get(name, 0) + 1

        return hook

    handles = [p.module.register_forward_pre_hook(before(name), with_kwargs=True) for name, p in pools.items()]
    try:
        for batch in one_pass():
            run(forward, model, batch)
            return calls
    finally:
        for handle in handles:
            handle.remove()
    raise NormalizationError("batches gave no batch; at least one is needed")


def in_one_pass(model: nn.Module, pools: dict[str, Pool], one_pass: Pass, forward: Forward) -> list[tuple[str, bool]]:
    """Pool all layers in one pass, in which each normalizes by the statistics of the batch.

    Args:
        model: The model, in evaluation mode.
        pools: A pool for each layer, by name.
        one_pass: The batches.
        forward: How the model is called.

    Returns:
        The layers in the order of their first call, with whether their statistics are exact.
    """
    order: dict[str, None] = {}
    handles = []
    for name, pool in pools.items():
        handles.append(pool.module.register_forward_pre_hook(lambda *_, name=name: order.setdefault(name)))
        pool.start(stop=None, own_batch=True)
    try:
        for batch in one_pass():
            run(forward, model, batch)
    finally:
        for handle in handles:
            handle.remove()
        for pool in pools.values():
            pool.stop()
    called = [name for name in order if pools[name].calls]
    for name in pools.keys() - set(called):  # what was called with more than a tensor has counted the batches
        pools[name].restore()
    for name in called:
        pools[name].finish()
        pools[name].write()
    return [(name, i == 0) for i, name in enumerate(called)]


@contextmanager
def kept_on_failure(pools: Iterable[Pool]) -> Iterator[None]:
    """Put every running statistic back if something is raised.

    Args:
        pools: Those that may have been written.

    Yields:
        Nothing.
    """
    try:
        yield
    except BaseException:
        for pool in pools:
            pool.restore()
        raise
