# SPDX-License-Identifier: Apache-2.0
"""The kernel's own tracing as a witness: which thread made which ioctl of DRM how often.

Owns the trigger on the event of ioctl(2) for the length of a block. It counts where the system call begins, in the
table of the tracing itself: nothing of it is the product's. It knows threads, not cgroups and not devices.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

EVENT = Path("/sys/kernel/tracing/events/syscalls/sys_enter_ioctl")
TRIGGER = "hist:keys=common_pid,cmd:size=4096"
ENTRY = re.compile(r"\{ common_pid: +(\d+), cmd: +(\d+) \} hitcount: +(\d+)")
DRM_TYPE = 0x64


@contextmanager
def watching() -> Iterator[None]:
    (EVENT / "trigger").write_text(TRIGGER)
    try:
        yield
    finally:
        (EVENT / "trigger").write_text(f"!{TRIGGER}")


def seen() -> dict[int, Counter[int]]:
    """Calls of DRM's type so far by thread and number."""
    text = (EVENT / "hist").read_text()
    assert re.search(r"Dropped: 0$", text, re.M), text
    found: dict[int, Counter[int]] = {}
    for thread, command, count in (map(int, entry) for entry in ENTRY.findall(text)):
        if command >> 8 & 0xFF == DRM_TYPE:
            found.setdefault(thread, Counter())[command & 0xFF] += count
    return found
