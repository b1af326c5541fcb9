# SPDX-License-Identifier: Apache-2.0
"""How sysfs and procfs are read: uevents, links, attributes, majors. Every file may vanish at any moment, because
devices do."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

_MAX_FILE_BYTES = 1 << 16


def read_text(path: Path) -> str:
    """Text of an attribute; empty when it is gone, which is also what a device being removed may answer."""
    try:
        with path.open("rb") as file:
            return printable(file.read(_MAX_FILE_BYTES))
    except OSError:
        return ""


def printable(data: bytes) -> str:
    """Text that every sink can encode: bytes that are not UTF-8 become `\\xff`."""
    return data.decode("utf-8", "backslashreplace")


def parse_uevent(text: str) -> dict[str, str]:
    """KEY=VALUE lines as the kernel writes them, without quoting; a value may hold `=`. Other lines are skipped."""
    pairs = (line.partition("=") for line in text.split("\n"))
    return {key: value for key, equals, value in pairs if key and equals}


def read_bus(device: Path) -> str | None:
    """The bus or class of a device; None where there is none."""
    try:
        return (device / "subsystem").readlink().name
    except OSError:
        return None


def read_owner(entry: Path) -> Path:
    """Real path of the device that a node belongs to; of the node itself when it has no parent device.

    A virtio device is passed over for the PCI function or platform device that carries it: kernels differ in which
    of the two the DRM device hangs under, and the transport is what has an address.
    """
    link = entry / "device"
    if not os.path.lexists(link):
        return Path(os.path.realpath(entry))
    owner = Path(os.path.realpath(link))  # not Path.resolve, which raises RuntimeError for links in a circle
    return owner.parent if read_bus(owner) == "virtio" else owner


def read_majors(procfs: Path) -> Mapping[str, int]:
    """Name -> major of the character devices in /proc/devices."""
    found: dict[str, int] = {}
    for line in read_text(procfs / "devices").partition("Block devices:")[0].splitlines():
        major, _, name = line.strip().partition(" ")
        if major.isdecimal() and len(major) <= 4:
            found.setdefault(name, int(major))
    return found


def numbered(directory: Path, prefix: str = "") -> Iterator[tuple[int, Path]]:
    """Entries that are called by a number, in its order; none when the directory cannot be read."""
    name = re.compile(re.escape(prefix) + "([0-9]{1,6})")
    try:
        found = [(int(match[1]), entry) for entry in directory.iterdir() if (match := name.fullmatch(entry.name))]
    except OSError:
        return
    yield from sorted(found)
