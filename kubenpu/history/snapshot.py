# SPDX-License-Identifier: Apache-2.0
"""From a View to what the history stores: totals of named workloads and of devices, as numbers by measure.

The only module of the history that knows which numbers there are; a further source is further entries of MEASURES.
Pure; its types are named tuples, because a dataclass costs the daemon more memory. Who has no confirmed name is left
out: the store gives to nobody what the named ones do not explain.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from typing import TYPE_CHECKING, NamedTuple

from kubenpu.model.device import SHOWN, Visibility, VisibilityOf
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.kinds import KINDS, Kind
from kubenpu.model.sample import OFF, Counts
from kubenpu.model.usage import WAIT_NS
from kubenpu.model.view import Amounts, ClientTotals, ClientUsage, DeviceUsage, View, sees_outcome

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocations

MEASURES = (*(f"calls.{kind.label}" for kind in KINDS), *(f"errors.{kind.label}" for kind in KINDS), WAIT_NS)
CALLS = slice(0, len(KINDS))
_OF_OUTCOMES = MEASURES[len(KINDS) :]
_OF_SUBMITS = (f"calls.{Kind.SUBMIT.label}", f"errors.{Kind.SUBMIT.label}")

Values = tuple[int, ...]
"""One number per measure, in the order of MEASURES."""

Names = tuple[str, str, str, str, str, str]
"""What a workload is known by: kind, namespace, pod, container, UID of the pod, unit. All containers that had a name
in a pod one after the other are one."""

_UID = 4


class Total(NamedTuple):
    """`first_ns` grows when the older part of the counts left."""

    values: Values
    first_ns: int


class Told(NamedTuple):
    """What a driver tells of one workload, or of a whole device. None: it does not. `first_ns` as of a Total.
    `engine_ns`: without what was used before somebody looked, as nobody knows when that was."""

    engine_ns: int | None
    memory_bytes: int | None
    first_ns: int


class Snapshot(NamedTuple):
    """Totals since the counters of this epoch began. `devices`: vendor by address, for every device with totals.

    `departed` is the part of a device's total that the kernel has under no workload's name any more. `present`: devices
    that exist now. `counting_ns`: by device, CLOCK_BOOTTIME since which calls are counted; missing: they are not, or it
    is auxiliary and has no time of its own.
    `measured`: by device the measures that can be known of it. `held`: who was given which device, None: nobody tells.
    `unix_ms` is the clock of the wall at `taken_ns`.
    `told`: device time and memory, of devices with counts; `told_departed`: time that is under no name any more;
    `told_generation` 0: nobody looks at them. `timed`: devices whose drivers tell device time of all that they do.
    """

    epoch: str
    taken_ns: int
    unix_ms: int
    counting_ns: Mapping[str, int]
    devices: Mapping[str, str | None]
    present: frozenset[str]
    device_totals: Mapping[str, Values]
    departed: Mapping[str, Values]
    workloads: Mapping[tuple[Names, str], Total]
    measured: Mapping[str, frozenset[str]]
    labels: Mapping[Names, Mapping[str, str]]
    held: frozenset[tuple[Names, str]] | None
    told: Mapping[tuple[Names, str], Told] = {}
    told_devices: Mapping[str, Told] = {}
    told_departed: Mapping[str, int] = {}
    told_generation: int = 0
    timed: frozenset[str] = frozenset()


def read_snapshot(view: View, unix_ms: int, visibility: VisibilityOf) -> Snapshot | None:
    """None when there are no counts now."""
    if not view.epoch:
        return None
    vendors = {each.device: each.vendor for each in view.device_usage}
    workloads: dict[tuple[Names, str], Total] = {}
    labels = {}
    for usage in view.usage:
        if usage.owner.kind is OwnerKind.UNKNOWN or usage.device not in vendors:
            continue
        names = _names(usage.owner)
        total = Total(_values(usage.counts), usage.first_ns)
        before = workloads.get((names, usage.device))
        workloads[names, usage.device] = total if before is None else _add(before, total)
        labels[names] = view.pod_labels.get(usage.owner.pod_uid, {})
    held = None if view.allocations is None else frozenset(_held(view.allocations, vendors, workloads))
    labels |= {names: view.pod_labels.get(names[_UID], {}) for names, _ in held or ()}
    told_devices = {device: told for device, told in _told_devices(view) if device in vendors}
    return Snapshot(
        epoch=view.epoch,
        taken_ns=view.taken_ns,
        unix_ms=unix_ms,
        counting_ns=dict(_counting(view)),
        devices=vendors,
        present=frozenset(device.address for device in view.devices),
        device_totals={each.device: _values(each.settled) for each in view.device_usage},
        departed={each.device: _values(each.departed) for each in view.device_usage},
        workloads=workloads,
        measured={each.device: _measured(each, visibility(each.vendor)) for each in view.device_usage},
        labels={names: known for names, known in labels.items() if known},
        held=held,
        told={key: told for key, told in _told(view) if key[1] in vendors},
        told_devices=told_devices,
        told_departed=_told_departed(view, told_devices),
        told_generation=view.client_generation,
        timed=frozenset(device for device, vendor in vendors.items() if _tells_all_time(visibility(vendor))),
    )


def _tells_all_time(visibility: Mapping[str, Visibility]) -> bool:
    return visibility.get("device_time") is Visibility.ALWAYS


def _told(view: View) -> Iterator[tuple[tuple[Names, str], Told]]:
    found: dict[tuple[Names, str], Told] = {}
    for client in view.clients:
        if client.owner.kind is not OwnerKind.UNKNOWN:
            key = (_names(client.owner), client.device)
            told = Told(_dated(client), _sum(client.memory), client.first_ns)
            found[key] = _add_told(found[key], told) if key in found else told
    yield from found.items()


def _told_devices(view: View) -> Iterator[tuple[str, Told]]:
    """Of one total that goes on for the whole boot."""
    memory: dict[str, int] = {}
    for client in view.clients:
        if client.memory:
            memory[client.device] = memory.get(client.device, 0) + (_sum(client.memory) or 0)
    times = {total.device: _dated(total) for total in view.client_totals}
    for device in times | memory:
        yield device, Told(times.get(device), memory.get(device), 0)


def _told_departed(view: View, devices: Mapping[str, Told]) -> Mapping[str, int]:
    departed = {device: told.engine_ns or 0 for device, told in devices.items()}
    for client in view.clients:
        if client.device in departed:
            departed[client.device] -= _dated(client) or 0
    return departed


def _dated(client: ClientUsage | ClientTotals) -> int | None:
    """Device time of which it is known when it was used: an interval can have no more than its engines can do in it."""
    used = _sum(client.engine_ns)
    return None if used is None else used - client.earlier_ns


def _add_told(one: Told, other: Told) -> Told:
    amounts = (_plus(one.engine_ns, other.engine_ns), _plus(one.memory_bytes, other.memory_bytes))
    return Told(*amounts, min(one.first_ns, other.first_ns))


def _plus(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def _sum(amounts: Amounts) -> int | None:
    return sum(amount for _, amount in amounts) if amounts else None


def _held(
    allocations: Allocations, devices: Container[str], workloads: Container[tuple[Names, str]]
) -> Iterator[tuple[Names, str]]:
    """Where a pod is known as a whole and this container is not, the pod has what the container was given."""
    for each in allocations.all:
        if each.device is not None and each.device in devices:
            names = (OwnerKind.POD.value, each.namespace, each.pod, each.container, each.pod_uid, "")
            whole = (*names[:3], "", *names[4:])
            here = (names, each.device) in workloads or (whole, each.device) not in workloads
            yield names if here else whole, each.device


def _names(owner: Owner) -> Names:
    return (owner.kind.value, owner.namespace, owner.pod, owner.container, owner.pod_uid, owner.unit)


def _values(counts: Counts) -> Values:
    return (*counts.calls, *counts.errors, counts.wait_ns)


def _add(one: Total, other: Total) -> Total:
    return Total(tuple(map(int.__add__, one.values, other.values)), min(one.first_ns, other.first_ns))


def _counting(view: View) -> Iterator[tuple[str, int]]:
    for device in view.device_usage:
        since = [hook.since_ns for hook in view.hooks if hook.mechanism != OFF and hook.hook in device.hooks]
        if since and not device.auxiliary:
            yield device.device, min(since)


def _measured(device: DeviceUsage, visibility: Mapping[str, Visibility]) -> frozenset[str]:
    """Not a submission that nobody could have seen, nor errors and waits where no hook sees what becomes of a call."""
    hidden = visibility.get("submit") not in SHOWN
    unknown = {*(_OF_SUBMITS if hidden else ()), *(() if sees_outcome(device.hooks) else _OF_OUTCOMES)}
    return frozenset(MEASURES) - unknown
