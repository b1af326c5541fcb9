# SPDX-License-Identifier: Apache-2.0
"""Which accelerators this node has, read from sysfs: device nodes of /sys/class/drm and /sys/class/accel, and those
that chardevs.py finds, joined by the device they hang under; kfd.py and nvidia.py tell more of some.

Reads only links, `uevent`, `dev` and `numa_node`, which the kernel answers from memory: no device node is opened and
no sleeping device is woken. Needs no privilege. procfs is looked for beside sysfs.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path

from kubenpu.devices import kfd, nvidia
from kubenpu.devices.chardevs import CharNode, find_char_nodes
from kubenpu.devices.schema import CHAR, SUBSYSTEMS
from kubenpu.devices.sysfs import parse_uevent, printable, read_majors, read_owner, read_text
from kubenpu.devices.tables import match_table
from kubenpu.model.device import Device, DriverTable, Node
from kubenpu.model.errors import SourceError

# Connectors (card0-HDMI-A-1), `version` and control nodes stand in the same directories.
_NODE_NAMES = {"drm": re.compile(r"(?:card|renderD)[0-9]{1,7}"), "accel": re.compile(r"accel[0-9]{1,7}")}
_DEV_DIRECTORIES = {"drm": "dri", "accel": "accel"}
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ID = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}")
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_COMPANIONS = ("vfio/vfio", "dma_heap/*")
_MAJORS = range(1 << 12)
_MINORS = range(1 << 20)


@dataclass(frozen=True, slots=True)
class Inventory:
    """`devices` by address, no two with the same; `problems` says what could not be read and of which device.

    `char_nodes`: what is known of nodes outside drm and accel.
    """

    devices: tuple[Device, ...]
    problems: tuple[str, ...]
    char_nodes: Mapping[Node, CharNode] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _FoundNode:
    subsystem: str
    node: Node
    table: DriverTable | None = None


def discover(sysfs_root: Path, tables: Iterable[DriverTable]) -> Inventory:
    """All accelerators below `sysfs_root` (/sys). SourceError when that is no directory; no devices is no error."""
    if not sysfs_root.is_dir():
        raise SourceError(f"{sysfs_root} is not a directory", "Mount sysfs there or name the place where it is mounted")
    tables = tuple(tables)
    problems: list[str] = []
    nodes_by_owner: dict[Path, list[_FoundNode]] = {}
    for subsystem in SUBSYSTEMS:
        for entry, found in _read_class(sysfs_root / "class" / subsystem, subsystem, problems):
            nodes_by_owner.setdefault(read_owner(entry), []).append(found)
    procfs = sysfs_root.with_name("proc")
    gpus = nvidia.read_gpus(procfs)
    chars: dict[Node, CharNode] = {}
    for char in find_char_nodes(sysfs_root, procfs, tables, gpus):
        chars.setdefault(char.node, char)
    for char in chars.values():
        nodes_by_owner.setdefault(char.owner, []).append(_FoundNode(CHAR, char.node, char.table))
    devices = [_read_device(owner, nodes, tables, problems) for owner, nodes in nodes_by_owner.items()]
    devices = _with_own_addresses(_without_lonely(devices))
    if gpus:
        devices = list(nvidia.describe(devices, gpus, procfs, read_majors(procfs)))
    devices = list(kfd.describe(devices, kfd.read_gpus(sysfs_root, problems)))
    return Inventory(tuple(devices), tuple(problems), chars)


def is_node(subsystem: str, name: str) -> bool:
    """Whether a class entry is a device node of an accelerator, and not a connector or a control node."""
    return subsystem in _NODE_NAMES and _NODE_NAMES[subsystem].fullmatch(name) is not None


def read_module_version(sysfs_root: Path, module: str) -> str | None:
    """What a loaded module says of its version; None when it is not loaded or has none."""
    return read_text(sysfs_root / "module" / module / "version").strip() or None


def _read_class(directory: Path, subsystem: str, problems: list[str]) -> Iterator[tuple[Path, _FoundNode]]:
    try:
        entries = sorted(directory.iterdir())
    except FileNotFoundError:
        return  # the kernel has no such class: accel before 6.2, drm where the module is not loaded
    except OSError as error:
        problems.append(f"{directory}: {error.strerror}")
        return
    for entry in entries:
        if not is_node(subsystem, entry.name):
            continue
        number = _read_number(entry)
        if number is None:
            problems.append(f"{entry.name}: left out, uevent and dev give no device number; it may be going away")
            continue
        yield entry, _FoundNode(subsystem, Node(f"{_DEV_DIRECTORIES[subsystem]}/{entry.name}", *number))


def _read_number(entry: Path) -> tuple[int, int] | None:
    """Major and minor of a node."""
    uevent = parse_uevent(read_text(entry / "uevent"))
    pair = (uevent.get("MAJOR", ""), uevent.get("MINOR", ""))
    if not all(pair):
        major, _, minor = read_text(entry / "dev").strip().partition(":")
        pair = (major, minor)
    numbers = [int(text) for text in pair if _NUMBER.fullmatch(text)]
    if len(numbers) != 2 or numbers[0] not in _MAJORS or numbers[1] not in _MINORS:
        return None
    return numbers[0], numbers[1]


def _read_device(
    owner: Path, found: Sequence[_FoundNode], tables: Sequence[DriverTable], problems: list[str]
) -> Device:
    name = printable(os.fsencode(owner.name))
    uevent = parse_uevent(read_text(owner / "uevent"))
    subsystem = found[0].subsystem
    if not uevent and (subsystem != CHAR or owner.exists()):
        problems.append(f"{name}: its uevent is empty, so its driver is not known; it may be going away")
    driver = uevent.get("DRIVER") or None
    by_node = next((each.table for each in found if each.table is not None), None)
    table = (match_table(tables, subsystem, driver, name) if subsystem != CHAR else None) or by_node
    return Device(
        address=_valid(uevent.get("PCI_SLOT_NAME"), _PCI_ADDRESS) or name,
        subsystem=subsystem,
        driver=driver,
        vendor=table.name if table else None,
        pci_id=_valid(uevent.get("PCI_ID"), _PCI_ID),
        numa_node=_parse_numa_node(read_text(owner / "numa_node").strip()),
        nodes=tuple(sorted((each.node for each in found), key=lambda node: (node.major, node.minor))),
        sysfs_path=printable(os.fsencode(owner)),
        auxiliary=all(_is_auxiliary(table, each) for each in found),
    )


def _is_auxiliary(table: DriverTable | None, found: _FoundNode) -> bool:
    """As the table says. Without one: a screen's, as a driver with something to compute on has a render node, too."""
    if table is None:
        return fnmatchcase(found.node.name, "dri/card*")
    return any(fnmatchcase(found.node.name, pattern) for pattern in table.auxiliary)


def _without_lonely(devices: list[Device]) -> list[Device]:
    """Without what machines have that have no accelerator for it: the container of VFIO, which stays beside a device of
    that driver, and heaps of shared buffers, which stay beside character devices of a system on chip."""
    lonely = [each for each in devices if any(fnmatchcase(each.nodes[0].name, name) for name in _COMPANIONS)]
    others = [each for each in devices if each not in lonely]
    of_chip = [each for each in others if each.subsystem == CHAR and each.driver and each.pci_id is None]
    vendors = {each.vendor for each in others} | {"dma_heap" for _ in of_chip}
    return others + [each for each in lonely if each.vendor in vendors]


def _with_own_addresses(devices: Iterable[Device]) -> list[Device]:
    """The devices by address. Names are unique on one bus only: of two alike, the PCI device keeps its address and
    the other is called by its path, which is unique."""
    taken: dict[str, Device] = {}
    for device in sorted(devices, key=lambda device: (device.pci_id is None, device.sysfs_path)):
        address = device.sysfs_path if device.address in taken else device.address
        taken[address] = replace(device, address=address)
    return [taken[address] for address in sorted(taken)]


def _parse_numa_node(text: str) -> int | None:
    """None for -1, for a device without the attribute and for text that is no number."""
    return int(text) if _NUMBER.fullmatch(text) and not text.startswith("-") else None


def _valid(text: str | None, pattern: re.Pattern[str]) -> str | None:
    return text if text is not None and pattern.fullmatch(text) else None
