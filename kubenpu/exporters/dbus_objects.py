# SPDX-License-Identifier: Apache-2.0
"""What the D-Bus objects are at one moment: their properties, the rows of the listings, and what two moments differ in.

Pure: data comes from a View. Refuses to invent, as the metrics do: no hook up, no counts; no submit where the driver
shows no submission.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kubenpu.api.dbus import (
    COUNTER_FIELDS,
    DEVICE,
    DEVICE_FIELDS,
    DEVICES_PATH,
    FILTER_FIELDS,
    NODE,
    NODE_FIELDS,
    OBJECT_MANAGER,
    OF_DEVICE,
    OF_EVERY_OBJECT,
    OF_NODE,
    PATH,
    PROPERTIES,
    WORKLOAD_FIELDS,
    Fields,
    Interface,
    ShownCounts,
    ShownDevice,
    ShownUsage,
    Workload,
    device_path,
    read_fields,
)
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import Usage, View

MAX_WORKLOADS_SEEN = 256  # signals of one round; the others follow in the next
FILTERS = {each.name: each for each in FILTER_FIELDS}
Filter = Mapping[str, object]


@dataclass(frozen=True, slots=True)
class Picture:
    """A View as D-Bus shows it. `submit_vendors`: drivers whose submissions pass an ioctl at least partly."""

    view: View
    submit_vendors: frozenset[str]
    devices: Mapping[str, Fields] = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", dict(self._devices()))

    def _devices(self) -> Iterator[tuple[str, Fields]]:
        counts = {}
        for each in self.view.device_usage if self.counting else ():
            counts[each.device] = ShownCounts(each.counts, each.since, each.vendor in self.submit_vendors)
        for device in self.view.devices:
            shown = ShownDevice(device, counts.get(device.address))
            yield device_path(device.address), read_fields(DEVICE_FIELDS, shown)

    @property
    def counting(self) -> bool:
        return any(hook.mechanism != "off" for hook in self.view.hooks)

    @property
    def node(self) -> Fields:
        return read_fields(NODE_FIELDS, self.view)

    def properties(self, path: str, interface: str) -> Fields:
        """Those that have a value; none for an interface that has no properties."""
        match interface:
            case NODE.name:
                return self.node
            case DEVICE.name:
                return self.devices[path]
            case _:
                return {}

    def interfaces(self, path: str) -> tuple[Interface, ...]:
        """What the object has; nothing: there is none."""
        if path == PATH:
            return OF_NODE
        if path in self.devices:
            return OF_DEVICE
        return OF_EVERY_OBJECT if f"{DEVICES_PATH}/".startswith(path.rstrip("/") + "/") else ()

    def children(self, path: str) -> list[str]:
        """Names of the objects right below."""
        start = path.rstrip("/") + "/"
        below = (each for each in (DEVICES_PATH, *self.devices) if each.startswith(start))
        return sorted({each[len(start) :].partition("/")[0] for each in below})

    def counters(self, wanted: Filter, offset: int, limit: int) -> tuple[list[Fields], int]:
        """Rows of a page in the View's order, which is stable, and how many rows there are."""
        usage: Sequence[Usage] = self.view.usage if self.counting else ()
        if wanted:
            usage = [u for u in usage if _fits(u, wanted)]
        page = usage[offset : offset + limit]
        return [read_fields(COUNTER_FIELDS, ShownUsage(u, self._counts(u))) for u in page], len(usage)

    def _counts(self, usage: Usage) -> ShownCounts:
        return ShownCounts(usage.counts, usage.since, usage.vendor in self.submit_vendors)


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


def read_workload(workload: Workload) -> Fields:
    return read_fields(WORKLOAD_FIELDS, workload)


# ---- changes ----


@dataclass(frozen=True, slots=True)
class Emission:
    """One signal: values in the order of its declaration, before they are encoded."""

    path: str
    interface: str
    member: str
    values: tuple[object, ...]


@dataclass(frozen=True, slots=True)
class Announced:
    """What subscribers know: properties by object and interface, and the workloads they were told of."""

    objects: Mapping[tuple[str, str], Fields]
    named: frozenset[Owner]


def announce_all(picture: Picture) -> Announced:
    """Where a connection begins: who wants to know what is there already asks."""
    return Announced(_objects(picture), frozenset(_named(picture.view)))


def plan_signals(old: Announced, picture: Picture) -> tuple[list[Emission], Announced]:
    """What to say, and what subscribers know then."""
    objects = _objects(picture)
    named = _named(picture.view)
    fresh = [owner for owner in named if owner not in old.named][:MAX_WORKLOADS_SEEN]
    emissions = [*_comings(old.objects, objects), *_changes(old.objects, objects)]
    if fresh:
        workloads = {workload.owner: workload for workload in find_workloads(picture.view)}
        emissions += (_emission(PATH, NODE, "WorkloadSeen", read_workload(workloads[owner])) for owner in fresh)
    return emissions, Announced(objects, frozenset(fresh).union(old.named.intersection(named)))


def _objects(picture: Picture) -> dict[tuple[str, str], Fields]:
    devices = {(path, DEVICE.name): properties for path, properties in picture.devices.items()}
    return {(PATH, NODE.name): picture.node, **devices}


def _named(view: View) -> dict[Owner, None]:
    """Owners whose name is known for good: one that is unknown yet would be seen twice."""
    return {usage.owner: None for usage in view.usage if usage.owner.kind is not OwnerKind.UNKNOWN}


def _comings(old: Mapping[tuple[str, str], Fields], new: Mapping[tuple[str, str], Fields]) -> Iterator[Emission]:
    for path, interface in sorted(old.keys() - new.keys()):
        yield _emission(PATH, OBJECT_MANAGER, "InterfacesRemoved", path, [interface])
        yield _emission(PATH, NODE, "DeviceRemoved", path)
    for path, interface in sorted(new.keys() - old.keys()):
        yield _emission(PATH, OBJECT_MANAGER, "InterfacesAdded", path, {interface: new[path, interface]})
        yield _emission(PATH, NODE, "DeviceAdded", path)


def _changes(old: Mapping[tuple[str, str], Fields], new: Mapping[tuple[str, str], Fields]) -> Iterator[Emission]:
    for key in sorted(new.keys() & old.keys()):
        before, now = old[key], new[key]
        changed = {name: value for name, value in now.items() if before.get(name) != value}
        gone = sorted(before.keys() - now.keys())
        if changed or gone:
            yield _emission(key[0], PROPERTIES, "PropertiesChanged", key[1], changed, gone)


def _emission(path: str, interface: Interface, member: str, *values: object) -> Emission:
    return Emission(path, interface.name, member, values)
