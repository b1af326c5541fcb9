# SPDX-License-Identifier: Apache-2.0
"""Memory of devices that the kernel has charged to one cgroup: the dmem controller of cgroup version 2 (since 6.14).

Data is `dmem.current`, a line per region of a device; what is below a cgroup is in its number, too. Returns what was
charged to the cgroup itself, so that every byte is one cgroup's. Where the controller is not on for a cgroup, nothing
is known: it refuses to take the number of a cgroup above, which is others' as well. It switches nothing on.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

CONTROLLER, CURRENT = "dmem", "dmem.current"
MAX_BYTES = 1 << 16
MAX_CHILDREN = 256
"""Who has a cgroup to manage can make any number; of one that has more nothing is known."""
_LINE = re.compile(r"[^/ ]{1,32}/([^/ ]{1,64})/([A-Za-z0-9_-]{1,32}) ([0-9]{1,19})")

Charged = Mapping[tuple[str, str], int]
"""Bytes by device, as the kernel names it, and region."""


def is_offered(mount: Path) -> bool:
    """Whether this kernel has the controller, on for anybody or not."""
    try:
        return CONTROLLER in (mount / "cgroup.controllers").read_text(encoding="ascii").split()
    except (OSError, ValueError):
        return False


def read_charged(mount: Path, path: str, cgroup_id: int) -> Charged:
    """Of the cgroup itself. Empty where that is not known, also when another one is at its path by now."""
    try:
        directory = os.open(mount / path.lstrip("/"), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except (OSError, ValueError):
        return {}
    try:
        if os.fstat(directory).st_ino != cgroup_id:
            return {}
        # First those below: what is given back meanwhile counts for nobody, what is taken for one.
        below = [_read_current(directory, f"{child}/{CURRENT}") for child in _children(directory)]
        own = _read_current(directory, CURRENT)
    except (OSError, ValueError):
        return {}
    finally:
        os.close(directory)
    return {key: max(size - sum(child.get(key, 0) for child in below), 0) for key, size in own.items()}


def _children(directory: int) -> Iterator[str]:
    """Cgroups directly below. The kernel says in the number of links how many there are."""
    if os.fstat(directory).st_nlink == 2:
        return
    count = 0
    with os.scandir(directory) as entries:
        for entry in entries:
            if entry.is_dir(follow_symlinks=False):
                count += 1
                if count > MAX_CHILDREN:
                    raise ValueError("too many cgroups")
                yield entry.name


def _read_current(directory: int, name: str) -> dict[tuple[str, str], int]:
    try:
        file = os.open(name, os.O_RDONLY | os.O_CLOEXEC, dir_fd=directory)
    except FileNotFoundError:
        return {}
    try:
        text = os.read(file, MAX_BYTES)
    finally:
        os.close(file)
    return parse_current(text.decode("ascii"))


def parse_current(text: str) -> dict[tuple[str, str], int]:
    """A region is KIND/DEVICE/NAME, where kind is what sort of driver has it: drm, and drivers outside. Other lines are
    skipped. Regions that are called the same add up."""
    found: dict[tuple[str, str], int] = {}
    for match in map(_LINE.fullmatch, text.split("\n")):
        if match:
            key = (match[1], match[2])
            found[key] = found.get(key, 0) + int(match[3])
    return found
