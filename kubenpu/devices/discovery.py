# SPDX-License-Identifier: Apache-2.0
"""Which accelerators this node has, read from sysfs: device nodes of /sys/class/drm and /sys/class/accel, joined by
the device they hang under.

Reads only links, `uevent`, `dev` and `numa_node`, which the kernel answers from memory: no device node is opened and
no sleeping device is woken. Needs no privilege. Every file may vanish at any moment, because devices do.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from kubenpu.devices.schema import SUBSYSTEMS
from kubenpu.devices.tables import match_table
from kubenpu.model.device import Device, DriverTable, Node
from kubenpu.model.errors import SourceError

# Connectors (card0-HDMI-A-1), `version` and control nodes stand in the same directories.
_NODE_NAMES = {"drm": re.compile(r"(?:card|renderD)[0-9]{1,7}"), "accel": re.compile(r"accel[0-9]{1,7}")}
_DEV_DIRECTORIES = {"drm": "dri", "accel": "accel"}
_PCI_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_PCI_ID = re.compile(r"[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}")
_NUMBER = re.compile(r"-?[0-9]{1,9}")
_MAJORS = range(1 << 12)
_MINORS = range(1 << 20)
_MAX_FILE_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Inventory:
    """`devices` by address, no two with the same; `problems` says what could not be read and of which device."""

    devices: tuple[Device, ...]
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _FoundNode:
    subsystem: str
    entry: Path
    node: Node


def discover(sysfs_root: Path, tables: Iterable[DriverTable]) -> Inventory:
    """All accelerators below `sysfs_root` (/sys). SourceError when that is no directory; no devices is no error."""
    if not sysfs_root.is_dir():
        raise SourceError(f"{sysfs_root} is not a directory", "Mount sysfs there or name the place where it is mounted")
    tables = tuple(tables)
    problems: list[str] = []
    nodes_by_owner: dict[Path, list[_FoundNode]] = {}
    for subsystem in SUBSYSTEMS:
        for found in _read_class(sysfs_root / "class" / subsystem, subsystem, problems):
            nodes_by_owner.setdefault(_read_owner(found.entry), []).append(found)
    devices = [_read_device(owner, nodes, tables, problems) for owner, nodes in nodes_by_owner.items()]
    return Inventory(tuple(_with_own_addresses(devices)), tuple(problems))


def is_node(subsystem: str, name: str) -> bool:
    """Whether a class entry is a device node of an accelerator, and not a connector or a control node."""
    return subsystem in _NODE_NAMES and _NODE_NAMES[subsystem].fullmatch(name) is not None


def read_module_version(sysfs_root: Path, module: str) -> str | None:
    """What a loaded module says of its version; None when it is not loaded or has none."""
    return _read_text(sysfs_root / "module" / module / "version").strip() or None


def parse_uevent(text: str) -> dict[str, str]:
    """KEY=VALUE lines as the kernel writes them, without quoting; a value may hold `=`. Other lines are skipped."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key: value for key, equals, value in pairs if key and equals}


def _read_class(directory: Path, subsystem: str, problems: list[str]) -> Iterator[_FoundNode]:
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
        yield _FoundNode(subsystem, entry, Node(f"{_DEV_DIRECTORIES[subsystem]}/{entry.name}", *number))


def _read_number(entry: Path) -> tuple[int, int] | None:
    """Major and minor of a node."""
    uevent = parse_uevent(_read_text(entry / "uevent"))
    pair = (uevent.get("MAJOR", ""), uevent.get("MINOR", ""))
    if not all(pair):
        major, _, minor = _read_text(entry / "dev").strip().partition(":")
        pair = (major, minor)
    numbers = [int(text) for text in pair if _NUMBER.fullmatch(text)]
    if len(numbers) != 2 or numbers[0] not in _MAJORS or numbers[1] not in _MINORS:
        return None
    return numbers[0], numbers[1]


def _read_owner(entry: Path) -> Path:
    """Real path of the device that a node belongs to; of the node itself when it has no parent device.

    A virtio device is passed over for the PCI function or platform device that carries it: kernels differ in which
    of the two the DRM device hangs under, and the transport is what has an address.
    """
    link = entry / "device"
    if not os.path.lexists(link):
        return Path(os.path.realpath(entry))
    owner = Path(os.path.realpath(link))  # not Path.resolve, which raises RuntimeError for links in a circle
    return owner.parent if _read_bus(owner) == "virtio" else owner


def _read_bus(device: Path) -> str | None:
    try:
        return (device / "subsystem").readlink().name
    except OSError:
        return None


def _read_device(
    owner: Path, found: Sequence[_FoundNode], tables: Sequence[DriverTable], problems: list[str]
) -> Device:
    name = _printable(os.fsencode(owner.name))
    uevent = parse_uevent(_read_text(owner / "uevent"))
    if not uevent:
        problems.append(f"{name}: its uevent is empty, so its driver is not known; it may be going away")
    subsystem = found[0].subsystem
    driver = uevent.get("DRIVER") or None
    table = match_table(tables, subsystem, driver, name)
    return Device(
        address=_valid(uevent.get("PCI_SLOT_NAME"), _PCI_ADDRESS) or name,
        subsystem=subsystem,
        driver=driver,
        vendor=table.name if table else None,
        pci_id=_valid(uevent.get("PCI_ID"), _PCI_ID),
        numa_node=_parse_numa_node(_read_text(owner / "numa_node").strip()),
        nodes=tuple(sorted((each.node for each in found), key=lambda node: (node.major, node.minor))),
        sysfs_path=_printable(os.fsencode(owner)),
    )


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


def _read_text(path: Path) -> str:
    """Text of an attribute; empty when it is gone, which is also what a device being removed may answer."""
    try:
        with path.open("rb") as file:
            return _printable(file.read(_MAX_FILE_BYTES))
    except OSError:
        return ""


def _printable(data: bytes) -> str:
    """Text that every sink can encode: bytes that are not UTF-8 become `\\xff`."""
    return data.decode("utf-8", "backslashreplace")
