# SPDX-License-Identifier: Apache-2.0
"""Reads what drivers say of open files: one thread for each device, so that a driver that hangs holds up no other.

A read that waits in the kernel cannot be interrupted. Its thread is left to itself, its device is said to be late, and
asked again when the thread has come back. Refuses to wait for longer than a look may take.
"""

from __future__ import annotations

import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from kubenpu.devices.fdinfo import parse_fdinfo
from kubenpu.ledger.clients import FileKey
from kubenpu.model.fdinfo import Fdinfo, Holder

READ_SECONDS = 10.0
"""Of all devices together; with the listing of holders it stays below the watchdog's patience."""
MAX_FDINFO_BYTES = 1 << 15


class Found(NamedTuple):
    """`fdinfo` None: it is no client, or nobody holds it any more, or we may not read it: then it was `refused`."""

    fdinfo: Fdinfo | None
    refused: bool
    begin_ns: int
    end_ns: int
    suspended_ns: int


class Reading(threading.Thread):
    """One device's files, one after the other; `found` grows."""

    def __init__(self, proc: Path, files: Sequence[tuple[FileKey, Sequence[Holder]]]) -> None:
        super().__init__(daemon=True)
        self._proc, self._files = proc, files
        self.found: dict[FileKey, Found] = {}
        self.given_up = False

    def run(self) -> None:
        for key, sharing in self._files:
            if self.given_up:
                return
            begin = boot_ns()
            fdinfo, refused = _read_first(self._proc, sharing)
            suspended = boot_ns() - time.monotonic_ns()
            self.found[key] = Found(fdinfo, refused, begin, boot_ns(), max(suspended, 0))


class Readers:
    """`late`: how many files of a device were not read the last time, where that are some."""

    def __init__(self, proc: Path) -> None:
        self._proc = proc
        self._at_work: dict[str, Reading] = {}
        self._missed: set[FileKey] = set()
        self.late: dict[str, int] = {}

    def read(self, files: Mapping[FileKey, Sequence[Holder]]) -> dict[FileKey, Found]:
        """Those that could be read in time. The ones that could not be the last time are the first."""
        of: defaultdict[str, list[FileKey]] = defaultdict(list)
        for key in sorted(files, key=lambda key: key not in self._missed):
            of[key[0]].append(key)
        self._at_work = {device: reading for device, reading in self._at_work.items() if reading.is_alive()}
        fresh = {
            device: Reading(self._proc, [(key, files[key]) for key in keys])
            for device, keys in of.items()
            if device not in self._at_work
        }
        found = _wait_for(fresh.values())
        self._at_work |= fresh
        self._missed = files.keys() - found.keys()
        self.late = {device: late for device, keys in of.items() if (late := len(self._missed.intersection(keys)))}
        return found


def _wait_for(readings: Iterable[Reading]) -> dict[FileKey, Found]:
    readings, found, end = tuple(readings), dict[FileKey, Found](), time.monotonic() + READ_SECONDS
    for reading in readings:
        reading.start()
    for reading in readings:
        reading.join(max(0.0, end - time.monotonic()))
        reading.given_up = True
        found |= reading.found.copy()
    return found


def _read_first(proc: Path, sharing: Iterable[Holder]) -> tuple[Fdinfo | None, bool]:
    """By the first who still holds it, and whether somebody's may not be read."""
    refused = False
    for holder in sharing:
        try:
            with task_path(proc, holder, f"fdinfo/{holder.fd}").open("rb", buffering=0) as file:
                text = file.read(MAX_FDINFO_BYTES)
        except PermissionError:
            refused = True
        except OSError:
            continue  # it has closed it, or ended
        else:
            return parse_fdinfo((text or b"").decode(errors="replace"), holder.ino), False
    return None, refused


def task_path(proc: Path, holder: Holder, name: str) -> Path:
    return Path(proc, f"{holder.tgid}/task/{holder.pid}/{name}")


def boot_ns() -> int:
    """Now on CLOCK_BOOTTIME."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
