# SPDX-License-Identifier: Apache-2.0
"""Compares what the simulated workloads say they did with what the metrics say. Pure.

Calls and errors must be equal per kind; waiting time must lie between what was measured inside and around the calls.
Reads no file and no socket: it is given tallies and samples that were taken while nothing was called.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubenpu.exporters.scrape import Row
from kubenpu.model.kinds import KINDS
from tests.fakes.sim_plan import SimWorkload
from tests.fakes.sim_tally import Tally

HEADER = ("WORKLOAD", "DEVICE", "CALLS MADE", "COUNTED", "FAILED", "COUNTED", "SECONDS WAITED", "COUNTED", "EQUAL")
_WHERE = ("namespace", "pod", "container", "unit", "device")


@dataclass(frozen=True, slots=True)
class Metered:
    """What the metrics say of one workload on one device; None where there is no such series."""

    calls: tuple[int | None, ...]
    errors: tuple[int | None, ...]
    wait_seconds: float | None


@dataclass(frozen=True, slots=True)
class Comparison:
    """One workload: its own tally beside the metrics."""

    workload: SimWorkload
    tally: Tally
    metered: Metered

    @property
    def equal(self) -> bool:
        wait_ns = -1 if self.metered.wait_seconds is None else round(self.metered.wait_seconds * 1e9)
        return (
            _same(self.tally.calls, self.metered.calls)
            and _same(self.tally.errors, self.metered.errors)
            and self.tally.wait_within_ns <= wait_ns <= self.tally.wait_around_ns
        )

    def cells(self) -> tuple[str, ...]:
        metered = self.metered
        wait = "-" if metered.wait_seconds is None else f"{metered.wait_seconds:.6f}"
        bounds = f"{self.tally.wait_within_ns / 1e9:.6f}..{self.tally.wait_around_ns / 1e9:.6f}"
        return (
            self.workload.title,
            self.workload.device.address,
            str(sum(self.tally.calls)),
            _total(metered.calls),
            str(sum(self.tally.errors)),
            _total(metered.errors),
            bounds,
            wait,
            "yes" if self.equal else "NO",
        )


def compare(tallies: Sequence[tuple[SimWorkload, Tally]], rows: Iterable[Row]) -> list[Comparison]:
    """One per workload, in their order."""
    found = {(row.name.replace("_host_", "_"), *_place(row.labels), row.labels.get("kind", "")): row for row in rows}

    def metered(workload: SimWorkload) -> Metered:
        place = _place_of(workload)
        calls, errors = (
            tuple(_value(found.get((name, *place, kind.label))) for kind in KINDS)
            for name in ("kubenpu_ioctl_total", "kubenpu_ioctl_errors_total")
        )
        wait = found.get(("kubenpu_ioctl_wait_seconds_total", *place, ""))
        return Metered(calls, errors, wait.value if wait else None)

    return [Comparison(workload, tally, metered(workload)) for workload, tally in tallies]


def find_faults(tallies: Sequence[tuple[SimWorkload, Tally]], rows: Sequence[Row]) -> list[str]:
    """What else is not as it must be: independent device totals, the balance, losses, calls without a name."""
    made: dict[tuple[str, str], int] = {}
    for workload, tally in tallies:
        for kind, calls in zip(KINDS, tally.calls, strict=True):
            key = (workload.device.address, kind.label)
            made[key] = made.get(key, 0) + calls
    faults = []
    totals = {(r.labels["device"], r.labels["kind"]): r for r in rows if r.name == "kubenpu_device_ioctl_total"}
    for (device, label), calls in made.items():
        counted = _value(totals.get((device, label)))
        if (counted or 0) != calls:
            faults.append(f"device {device}: {calls} calls of kind {label} made, {counted} in its total")
    zero = ("kubenpu_attribution_imbalance", "kubenpu_events_dropped_total", "kubenpu_unattributed_ioctls")
    faults += [f"{r.name}{dict(r.labels)} is {r.value:g}, not 0" for r in rows if r.name in zero and r.value]
    names = {row.name for row in rows}
    faults += [f"{name} is missing" for name in zero[:2] if name not in names]
    return faults


def _place(labels: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(labels.get(name, "") for name in _WHERE)


def _place_of(workload: SimWorkload) -> tuple[str, ...]:
    pod = workload.pod
    if pod is None:
        return ("", "", "", workload.title, workload.device.address)
    return (pod.namespace, pod.name, workload.container, "", workload.device.address)


def _same(made: Sequence[int], counted: Sequence[int | None]) -> bool:
    """A kind that was never used may have no series."""
    return all(m == (c or 0) for m, c in zip(made, counted, strict=True))


def _value(row: Row | None) -> int | None:
    return None if row is None else int(row.value)


def _total(values: Iterable[int | None]) -> str:
    known = [value for value in values if value is not None]
    return str(sum(known)) if known else "-"
