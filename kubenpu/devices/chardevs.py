# SPDX-License-Identifier: Apache-2.0
"""Accelerators' device nodes outside drm and accel, found as the driver tables say: in sysfs by name, else by number.

Reads links and uevents below /sys/dev/char, and /proc/devices, all of them answered from memory. Opens no device node
and needs none to exist. A container with a /dev of its own sees the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from pathlib import Path

from kubenpu.devices.nvidia import NvidiaGpu
from kubenpu.devices.schema import CHAR
from kubenpu.devices.sysfs import parse_uevent, read_bus, read_majors, read_owner, read_text
from kubenpu.model.device import DriverTable, Interface, Node, NodeMatch

MISC_MAJOR = 10  # of small drivers of every sort
_NUMBER = re.compile(r"([0-9]{1,4}):([0-9]{1,7})")
_PASSED_THROUGH = "vfio-pci"  # a driver of anything; what it holds is an accelerator by its class or vendor
_ACCELERATOR = re.compile(r"(?:3[0-9A-F]{4}|12[0-9A-F]{4})")
_ACCELERATOR_VENDOR = "1AE0:"  # Google's TPUs have a class of their own


@dataclass(frozen=True, slots=True)
class CharNode:
    """A node, the directory in sysfs of the device it belongs to (not there for one that sysfs does not know), the
    table that knows it and the number of the interface in it. `shared`: others have the same major."""

    owner: Path
    node: Node
    table: DriverTable
    interface: int
    shared: bool


@dataclass(frozen=True, slots=True)
class _Wanted:
    table: DriverTable
    number: int
    match: NodeMatch

    @property
    def interface(self) -> Interface:
        return self.table.interfaces[self.number]

    def found(self, owner: Path, node: Node) -> CharNode:
        shared = self.match.shared or node.major == MISC_MAJOR
        return CharNode(owner, node, self.table, self.number, shared)


def find_char_nodes(
    sysfs: Path, procfs: Path, tables: Iterable[DriverTable], gpus: Sequence[NvidiaGpu] = ()
) -> Iterator[CharNode]:
    """Every node that a table's interface of subsystem char describes. `gpus`: which of NVIDIA's nodes there are."""
    wanted = [
        _Wanted(table, number, match)
        for table in tables
        for number, interface in enumerate(table.interfaces)
        for match in (interface.nodes if interface.subsystem == CHAR else ())
        if match.devname
    ]
    entries = _char_entries(sysfs) if wanted else []
    yield from _in_sysfs(sysfs, entries, [each for each in wanted if each.match.chrdev is None])
    numbered = [each for each in wanted if each.match.minors is not None]
    majors = read_majors(procfs) if numbered else {}
    in_sysfs = {major for (major, _), _ in entries}  # of these a node that sysfs does not have does not exist
    for each in numbered:
        if each.match.major not in in_sysfs:
            yield from _by_number(sysfs, procfs, each, majors, gpus)


def event_subsystems(tables: Iterable[DriverTable]) -> frozenset[str]:
    """Whose uevents may mean another answer of find_char_nodes(): the classes of such nodes, and what stands for those
    that have none: modules, and PCI functions that a driver takes or leaves."""
    matches = (match for table in tables for interface in table.interfaces for match in interface.nodes)
    return frozenset(("module", "pci", *(match.sysfs_class for match in matches if match.sysfs_class)))


# ---- in sysfs ----


Entries = list[tuple[tuple[int, int], str]]


def _char_entries(sysfs: Path) -> Entries:
    """Device number and target of the link of every character device. There may be none: a tree made for a test."""
    directory = sysfs / "dev/char"
    try:
        names = [entry.name for entry in os.scandir(directory) if entry.is_symlink()]
    except OSError:
        return []
    numbers = [(found, name) for name in sorted(names) if (found := _NUMBER.fullmatch(name))]
    return [((int(found[1]), int(found[2])), _target(f"{directory}/{name}")) for found, name in numbers]


def _target(link: str) -> str:
    try:
        return os.readlink(link)  # noqa: PTH115 - hundreds of terminals: a Path for each takes longer than the call
    except OSError:
        return ""


def _in_sysfs(sysfs: Path, entries: Entries, wanted: Sequence[_Wanted]) -> Iterator[CharNode]:
    pattern = re.compile("|".join(translate(each.match.devname.rpartition("/")[2]) for each in wanted) or "(?!)")
    for number, target in entries:
        if not pattern.match(target.rpartition("/")[2].rpartition("!")[2]):
            continue  # the name of the target decides, nothing is followed
        place = Path(os.path.realpath(sysfs / "dev/char" / target))
        name = parse_uevent(read_text(place / "uevent")).get("DEVNAME") or place.name.replace("!", "/")
        for each in wanted:
            if fnmatchcase(name, each.match.devname) and each.match.sysfs_class in (None, read_bus(place)):
                owner = _owner(sysfs, place, each.interface)
                if owner is not None:
                    yield each.found(owner, Node(name, *number))
                    break


def _owner(sysfs: Path, place: Path, interface: Interface) -> Path | None:
    """The device behind a node, None when the interface is not for it. A VFIO group's is the accelerator in it."""
    if _PASSED_THROUGH in interface.uevent_drivers:
        group = sysfs / "kernel/iommu_groups" / place.name / "devices"
        try:
            found = sorted(group.iterdir())
        except OSError:  # no group, or gone meanwhile
            found = [read_owner(place)]
        return next((Path(os.path.realpath(each)) for each in found if _is_accelerator(each)), None)
    if read_bus(place) == "accel":
        return place  # a control node: its calls end unseen, which must not take the errors of the device along
    owner = read_owner(place)
    driver = parse_uevent(read_text(owner / "uevent")).get("DRIVER")
    return owner if driver is None or not interface.uevent_drivers or driver in interface.uevent_drivers else None


def _is_accelerator(device: Path) -> bool:
    uevent = parse_uevent(read_text(device / "uevent"))
    known = uevent.get("PCI_ID", "").startswith(_ACCELERATOR_VENDOR)
    return known or _ACCELERATOR.fullmatch(uevent.get("PCI_CLASS", "")) is not None


# ---- by number ----


def _by_number(
    sysfs: Path, procfs: Path, wanted: _Wanted, majors: Mapping[str, int], gpus: Sequence[NvidiaGpu]
) -> Iterator[CharNode]:
    match = wanted.match
    major = match.major if match.major is not None else majors.get(match.chrdev or "")
    if major is None or major not in majors.values() or match.minors is None:
        return
    first, last = match.minors
    if "[" in match.devname:
        for gpu in gpus:
            if gpu.minor is not None and first <= gpu.minor <= last:
                name = f"{match.devname.partition('[')[0]}{gpu.minor}"
                owner = Path(os.path.realpath(sysfs / "bus/pci/devices" / gpu.address))
                yield wanted.found(owner, Node(name, major, gpu.minor))
    else:
        name = match.devname.rstrip("*")
        for minor in range(first, last + 1):
            yield wanted.found(procfs / "devices" / name, Node(name, major, minor))
