# SPDX-License-Identifier: Apache-2.0
"""What the D-Bus objects are at one moment: their properties, the rows of the listings, and what two moments differ in.

Pure: data comes from a Picture.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from kubenpu.api.dbus import (
    DEVICE,
    DEVICES_PATH,
    NODE,
    OBJECT_MANAGER,
    OF_DEVICE,
    OF_EVERY_OBJECT,
    OF_NODE,
    PATH,
    PROPERTIES,
    Fields,
    Interface,
    device_path,
    read_fields,
)
from kubenpu.api.fields import COUNTER_FIELDS, DEVICE_FIELDS, NODE_FIELDS, WORKLOAD_FIELDS, Workload
from kubenpu.exporters.picture import Filter, Picture, find_workloads
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import View

MAX_WORKLOADS_SEEN = 256  # signals of one round; the others follow in the next


class Objects:
    """A Picture as D-Bus shows it."""

    def __init__(self, picture: Picture) -> None:
        self.picture = picture
        self.node = read_fields(NODE_FIELDS, picture.view)
        self.devices = {device_path(s.device.address): read_fields(DEVICE_FIELDS, s) for s in picture.devices()}

    @property
    def view(self) -> View:
        return self.picture.view

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
        """Rows of a page, and how many rows there are."""
        found = self.picture.select(wanted)
        page = found[offset : offset + limit]
        return [read_fields(COUNTER_FIELDS, self.picture.show(usage)) for usage in page], len(found)


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


def announce_all(objects: Objects) -> Announced:
    """Where a connection begins: who wants to know what is there already asks."""
    return Announced(_properties(objects), frozenset(_named(objects.view)))


def plan_signals(old: Announced, objects: Objects) -> tuple[list[Emission], Announced]:
    """What to say, and what subscribers know then."""
    properties = _properties(objects)
    named = _named(objects.view)
    fresh = [owner for owner in named if owner not in old.named][:MAX_WORKLOADS_SEEN]
    emissions = [*_comings(old.objects, properties), *_changes(old.objects, properties)]
    if fresh:
        workloads = {workload.owner: workload for workload in find_workloads(objects.view)}
        emissions += (_emission(PATH, NODE, "WorkloadSeen", read_workload(workloads[owner])) for owner in fresh)
    return emissions, Announced(properties, frozenset(fresh).union(old.named.intersection(named)))


def _properties(objects: Objects) -> dict[tuple[str, str], Fields]:
    devices = {(path, DEVICE.name): properties for path, properties in objects.devices.items()}
    return {(PATH, NODE.name): objects.node, **devices}


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
