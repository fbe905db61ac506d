"""A close look at the modules that run, at the few steps that are looked at in detail: units, links, and what batch norms were given."""

import weakref
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from trimtab import _torch
from trimtab.recording import batch_statistics, details
from trimtab.recording.fed import Fed
from trimtab.recording.severed import Severed
from trimtab.recording.sites import CallTable, SiteTable, call_name
from trimtab.recording.taps import Tap
from trimtab.recording.window import Window


class CloseUp:
    """Knows which module made what within a step.

    Args:
        sites: The record's sites.
    """

    def __init__(self, sites: SiteTable) -> None:
        self._sites = sites
        self._calls = CallTable()
        self._origins: dict[int, str] = {}
        self._ungraded: dict[int, details.Ungraded] = {}
        self._severed = Severed()

    def look(
        self, window: Window, scope: int, tap: Tap, args: tuple[Any, ...], output: Tensor, site: int, fed: Fed
    ) -> None:
        """A module has run: keep its units, and where its input comes from.

        Args:
            window: The open step.
            scope: The forward call of the root that it belongs to.
            tap: The module's.
            args: What it was called with.
            output: The first tensor it gave.
            site: That of the output.
            fed: What the models are fed with.
        """
        module = tap.module()
        if module is None:
            return
        link = details.link(module, args, output, self._origins, self._ungraded)
        name = f"{tap.model}:{tap.name}"
        apart = details.tells_calls_apart(module)
        call = self._calls.number(name, link["operations"], link["sources"]) if apart else 1
        sources = [window.links[source] for source in link["sources"] if source in window.links]
        link["axis"] = axis = details.channel_axis(module, output, sources)
        summary = details.units(module, output, axis)
        if summary is not None:
            window.units.append((scope, site, call, summary))
        functional = details.functional_activation(args, link, sources)
        if functional is not None:
            window.units.append((scope, self._sites.index(tap.model, tap.name, "input"), call, functional))
        key = call_name(name, call)
        if key not in window.links:
            window.links[key] = link
            link["severed"] = self._severed.look(args, known=bool(link["sources"]), fed=fed)
            link["graph"] = output.requires_grad
            link["given"] = details.given_to_norm(module, args)
            if call == 1 and batch_statistics.is_batch_norm(module):
                self._look_at_batch(window, scope, tap, args, link)
        self._severed.add(output, key)
        if output.grad_fn is not None:
            self._origins.setdefault(_torch.sequence_number(output.grad_fn), key)
        else:
            self._ungraded[id(output)] = (weakref.ref(output), key)

    def _look_at_batch(self, window: Window, scope: int, tap: Tap, args: tuple[Any, ...], link: dict[str, Any]) -> None:
        """What a batch normalization was given, beside what it had kept when the step began."""
        given = batch_statistics.given_to(args)
        rows = None if given is None else batch_statistics.batch_statistics(given)
        if given is None or rows is None:
            return
        model = tap.model
        window.channels.append((scope, self._sites.index(model, tap.name, "batch-statistics"), rows))
        kept = window.kept.get(model, {}).get(tap.name)
        if kept is not None:
            window.channels.append((scope, self._sites.index(model, tap.name, "running-statistics"), kept))
        link["samples"] = window.batch
        link["padding"] = batch_statistics.padding(given, window.batch)

    def answers(self, loss: Tensor, links: Mapping[str, Mapping[str, Any]]) -> dict[int, str]:
        """The outputs that a loss can be made of: one that is a module's output, or lies in one, is not made of itself.

        Args:
            loss: The loss.
            links: Those of the step.

        Returns:
            Call of a module by the sequence number of its output's operation.
        """
        made = _torch.sequence_number(loss.grad_fn) if loss.grad_fn is not None and loss.numel() == 1 else -1
        return {n: key for n, key in self._origins.items() if n != made and links.get(key, {}).get("output") != []}

    def clear(self) -> None:
        """The step has ended."""
        self._origins.clear()
        self._ungraded.clear()
        self._severed.clear()
