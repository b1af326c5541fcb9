# SPDX-License-Identifier: Apache-2.0
"""What D-Bus and Varlink show at one moment: a View, what may be shown of it, and which rows a filter selects.

A View is used for a second at most, by both. Refuses to invent, as the metrics do: no hook up, no counts; no submit
where the driver shows no submission.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

from kubenpu.api.fields import FILTER_FIELDS, ShownCounts, ShownDevice, ShownUsage, Workload
from kubenpu.model.device import Visibility
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner
from kubenpu.model.view import DeviceUsage, Usage, View, sees_outcome

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocation

FRESH_S = 1.0
FILTERS = {each.name: each for each in FILTER_FIELDS}
Filter = Mapping[str, object]


class NodePort(Protocol):
    """What is needed of the node. All of it may be called from any thread and may block."""

    def view(self) -> View:
        """The node now."""

    def visibility(self, vendor: str | None) -> Mapping[str, Visibility]:
        """What of a driver's work passes an ioctl."""

    def note_source(self, source: str, reason: str, seconds: float) -> None:
        """Whether an interface is served; reason "" means yes."""


@dataclass(frozen=True, slots=True)
class Picture:
    """`submit_vendors`: drivers whose submissions pass an ioctl at least partly. `at`: Unix time of the View."""

    view: View
    submit_vendors: frozenset[str]
    at: float = field(default_factory=time.time)

    def devices(self) -> Iterator[ShownDevice]:
        counts = {}
        for each in self.view.device_usage:
            if self.view.counts(each.hooks):
                counts[each.device] = self._counts(each)
        for device in self.view.devices:
            yield ShownDevice(device, counts.get(device.address))

    def select(self, wanted: Filter) -> Sequence[Usage]:
        """In the View's order, which is stable."""
        return [u for u in self.view.usage if self.view.counts(u.hooks) and _fits(u, wanted)]

    def show(self, usage: Usage) -> ShownUsage:
        return ShownUsage(usage, self._counts(usage), self.view.allocated(usage))

    def allocations(self) -> tuple[Allocation, ...]:
        """Raises SourceError when it is not known who was given what."""
        if self.view.allocations is None:
            raise SourceError(
                "the kubelet has not told which devices it has given to whom",
                "On a node of a cluster look at the source kubelet of kubenpuctl doctor",
            )
        return self.view.allocations.shown(self.view.boot_unix_s)

    def _counts(self, usage: Usage | DeviceUsage) -> ShownCounts:
        submits = usage.vendor in self.submit_vendors
        return ShownCounts(usage.counts, usage.since, submits, sees_outcome(usage.hooks))


def _fits(usage: Usage, wanted: Filter) -> bool:
    """An absent value equals "" and nothing else."""
    return all((FILTERS[name].read(usage) or type(value)()) == value for name, value in wanted.items())


def find_workloads(view: View) -> list[Workload]:
    """Every owner once, in the View's order."""
    found: dict[Owner, list[Usage]] = {}
    for usage in view.usage:
        found.setdefault(usage.owner, []).append(usage)
    return [
        Workload(owner, any(u.alive for u in of), tuple(u.device for u in of), min(u.since for u in of))
        for owner, of in found.items()
    ]


class Pictures:
    """The one of now, for whoever asks, from any thread."""

    def __init__(self, node: NodePort) -> None:
        self._node = node
        self._lock = threading.Lock()
        self._picture: Picture | None = None
        self._read_at = 0.0
        self._forgotten = 0

    def now(self) -> Picture:
        """Raises KubeNpuError when there is no View."""
        with self._lock:
            picture = self._picture
            if picture is None or time.monotonic() - self._read_at > FRESH_S:
                forgotten = self._forgotten
                view = self._node.view()
                picture = Picture(view, view.submit_vendors(self._node.visibility))
                self._read_at = time.monotonic()
                # what changed meanwhile may not be in it
                self._picture = picture if forgotten == self._forgotten else None
            return picture

    def forget(self) -> None:
        """Something may be different now. Does not wait for a picture that is being made: that one is not kept."""
        self._forgotten += 1
        self._picture = None

    def forget_old(self) -> None:
        """It can be large and is of no use when it is old."""
        if time.monotonic() - self._read_at > FRESH_S:
            self._picture = None
