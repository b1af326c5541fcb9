# SPDX-License-Identifier: Apache-2.0
"""How fast workloads do what they do: the difference of two samples of kubenpud's counts over the time between them.

Pure. Refuses to guess: counts that began anew, or that are new and began before the first of the two samples (they had
another name then), have no rate this time, rather than a spike or a negative one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kubenpu.model.kinds import Kind

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import CounterRow, CountsRow, DeviceRow, NodeRow
    from kubenpu.model.identity import Owner

_ROUNDING_S = 1
"""kubenpud tells Unix times in whole seconds and works them out anew when it starts or the clock was set."""


@dataclass(frozen=True, slots=True)
class Sample:
    """What kubenpud said at one moment: `at` on the monotonic clock, and in Unix time."""

    at: float
    unix_s: float
    node: NodeRow
    devices: tuple[DeviceRow, ...]
    rows: tuple[CounterRow, ...]


@dataclass(frozen=True, slots=True)
class Rates:
    """Per second. `submits` None: the driver does not show them. `waiting`: how many threads waited, on average; the
    time of a wait counts when it ends. None with `errors`: how calls end is not seen."""

    submits: float | None
    calls: float
    errors: float | None
    waiting: float | None

    @property
    def idle(self) -> bool:
        return not (self.calls or self.errors or self.waiting)


@dataclass(frozen=True, slots=True)
class Line:
    """One workload on one device. `rates` None: not known this time."""

    row: CounterRow
    rates: Rates | None


def rate_workloads(old: Sample | None, new: Sample) -> list[Line]:
    """Every row of the new sample, in its order."""
    before: dict[tuple[Owner, str], CountsRow] = {}
    if old is not None and _same_counting(old, new):
        before = {(row.owner, row.device): row.counts for row in old.rows}
    return [Line(row, _rate(old, new, before.get((row.owner, row.device)), row.counts)) for row in new.rows]


def rate_devices(old: Sample | None, new: Sample) -> Iterator[tuple[DeviceRow, Rates | None]]:
    """Every device of the new sample."""
    before: dict[str, CountsRow | None] = {}
    if old is not None and _same_counting(old, new):
        before = {device.address: device.counts for device in old.devices}
    for device in new.devices:
        counts, known = device.counts, before.get(device.address)
        yield device, None if counts is None or known is None else _rate(old, new, known, counts)


def _same_counting(old: Sample, new: Sample) -> bool:
    begun, again = old.node.counting_since, new.node.counting_since
    return begun is not None and again is not None and abs(again - begun) <= _ROUNDING_S


def _rate(old: Sample | None, new: Sample, before: CountsRow | None, now: CountsRow) -> Rates | None:
    if old is None or new.at <= old.at:
        return None
    seconds = new.at - old.at
    if before is not None and abs(now.since - before.since) <= _ROUNDING_S:
        calls, errors = _added(before.calls, now.calls), _added(before.errors or {}, now.errors or {})
        wait_ns = (now.wait_ns or 0) - (before.wait_ns or 0)
    elif now.since >= new.unix_s - seconds:  # by the clock as it is now, which may have been set
        calls, errors, wait_ns = dict(now.calls), dict(now.errors or {}), now.wait_ns or 0
    else:
        return None
    if wait_ns < 0 or any(n < 0 for n in (*calls.values(), *errors.values())):
        return None
    submits = calls.get(Kind.SUBMIT.label)
    return Rates(
        None if submits is None else submits / seconds,
        sum(calls.values()) / seconds,
        None if now.errors is None else sum(errors.values()) / seconds,
        None if now.wait_ns is None else wait_ns / 1e9 / seconds,
    )


def _added(before: Mapping[str, int], now: Mapping[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in now.items()}
