# SPDX-License-Identifier: Apache-2.0
"""Accelerators' device nodes outside drm and accel, found as the driver tables say: in sysfs by name, else by number.

Reads links and uevents below /sys/dev/char, /proc/devices, and what NVIDIA's driver says of its GPUs in procfs, all of
them answered from memory. Opens no device node and needs none to exist. A container with a /dev of its own sees the
same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase, translate
from pathlib import Path

from kubenpu.devices.schema import CHAR
from kubenpu.devices.sysfs import parse_uevent, read_bus, read_owner, read_text
from kubenpu.model.device import DriverTable, Interface, Node, NodeMatch

NVIDIA_GPUS = "driver/nvidia/gpus"
_NUMBER = re.compile(r"([0-9]{1,4}):([0-9]{1,7})")
_GPU_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,3})\s*$", re.M)
_PASSED_THROUGH = "vfio-pci"  # a driver of anything; what it holds is an accelerator by its class or vendor
_ACCELERATOR = re.compile(r"(?:3[0-9A-F]{4}|12[0-9A-F]{4})")
_ACCELERATOR_VENDOR = "1AE0:"  # Google's TPUs have a class of their own


@dataclass(frozen=True, slots=True)
class CharNode:
    """A node, the directory in sysfs of the device it belongs to (not there for one that sysfs does not know), and the
    table that knows it."""

    owner: Path
    node: Node
    table: DriverTable


def find_char_nodes(sysfs: Path, procfs: Path, tables: Iterable[DriverTable]) -> Iterator[CharNode]:
    """Every node that a table's interface of subsystem char describes."""
    wanted = [
        (table, interface, match)
        for table in tables
        for interface in table.interfaces
        for match in (interface.nodes if interface.subsystem == CHAR else ())
        if match.devname
    ]
    entries = _char_entries(sysfs) if wanted else []
    yield from _in_sysfs(sysfs, entries, [each for each in wanted if each[2].chrdev is None])
    numbered = [(table, match) for table, _, match in wanted if match.minors is not None]
    majors = _read_majors(procfs) if numbered else {}
    in_sysfs = {major for (major, _), _ in entries}  # of these a node that sysfs does not have does not exist
    for table, match in numbered:
        if match.major not in in_sysfs:
            yield from _by_number(sysfs, procfs, table, match, majors)


def event_subsystems(tables: Iterable[DriverTable]) -> frozenset[str]:
    """Whose uevents may mean another answer of find_char_nodes(): the classes of such nodes, and what stands for those
    that have none: modules, and PCI functions that a driver takes or leaves."""
    matches = (match for table in tables for interface in table.interfaces for match in interface.nodes)
    return frozenset(("module", "pci", *(match.sysfs_class for match in matches if match.sysfs_class)))


def match_node(tables: Iterable[DriverTable], node: Node) -> tuple[DriverTable, Interface] | None:
    """The table and the interface that describe a node which find_char_nodes() found."""
    for table in tables:
        for interface in table.interfaces:
            if any(match.devname and fnmatchcase(node.name, match.devname) for match in interface.nodes):
                return table, interface
    return None


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


def _in_sysfs(
    sysfs: Path, entries: Entries, wanted: list[tuple[DriverTable, Interface, NodeMatch]]
) -> Iterator[CharNode]:
    pattern = re.compile("|".join(translate(match.devname.rpartition("/")[2]) for _, _, match in wanted) or "(?!)")
    for number, target in entries:
        if not pattern.match(target.rpartition("/")[2].rpartition("!")[2]):
            continue  # the name of the target decides, nothing is followed
        place = Path(os.path.realpath(sysfs / "dev/char" / target))
        name = parse_uevent(read_text(place / "uevent")).get("DEVNAME") or place.name.replace("!", "/")
        for table, interface, match in wanted:
            if fnmatchcase(name, match.devname) and match.sysfs_class in (None, read_bus(place)):
                owner = _owner(sysfs, place, interface)
                if owner is not None:
                    yield CharNode(owner, Node(name, *number), table)
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


def _read_majors(procfs: Path) -> Mapping[str, int]:
    """Name -> major of the character devices in /proc/devices."""
    found: dict[str, int] = {}
    for line in read_text(procfs / "devices").partition("Block devices:")[0].splitlines():
        major, _, name = line.strip().partition(" ")
        if major.isdecimal() and len(major) <= 4:
            found.setdefault(name, int(major))
    return found


def _by_number(
    sysfs: Path, procfs: Path, table: DriverTable, match: NodeMatch, majors: Mapping[str, int]
) -> Iterator[CharNode]:
    major = match.major if match.major is not None else majors.get(match.chrdev or "")
    if major is None or major not in majors.values() or match.minors is None:
        return
    first, last = match.minors
    if "[" in match.devname:
        for address, minor in _read_gpus(procfs):
            if first <= minor <= last:
                name = f"{match.devname.partition('[')[0]}{minor}"
                owner = Path(os.path.realpath(sysfs / "bus/pci/devices" / address))
                yield CharNode(owner, Node(name, major, minor), table)
    else:
        name = match.devname.rstrip("*")
        for minor in range(first, last + 1):
            yield CharNode(procfs / "devices" / name, Node(name, major, minor), table)


def _read_gpus(procfs: Path) -> Iterator[tuple[str, int]]:
    """PCI address and minor of NVIDIA's GPUs, as its driver tells."""
    try:
        directories = sorted((procfs / NVIDIA_GPUS).iterdir())
    except OSError:
        return
    for directory in directories:
        found = _GPU_MINOR.search(read_text(directory / "information"))
        if found:
            yield directory.name, int(found[1])
