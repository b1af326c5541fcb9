# SPDX-License-Identifier: Apache-2.0
"""What a simulated workload says it did, and the word that pauses and stops it: a file shared with the process.

The independent source the metrics are compared with. The layout is struct tally of sim_workload.c.
"""

from __future__ import annotations

import mmap
import struct
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

from kubenpu.model.kinds import KINDS

_LAYOUT = struct.Struct(f"=QQ{len(KINDS)}Q{len(KINDS)}QQQ")
_CONTROL, _PARKED = 0, 8
_RUN, _STOP = 0, 1
_PAUSE_SECONDS = 10.0


@dataclass(frozen=True, slots=True)
class Tally:
    """Totals since the start. The true time of waiting lies between the two values."""

    calls: tuple[int, ...]
    errors: tuple[int, ...]
    wait_within_ns: int
    wait_around_ns: int


class TallyFile:
    """The shared file of one workload. Made new; owns the mapping until close()."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.write_bytes(bytes(_LAYOUT.size))
        with path.open("r+b") as file:
            self._memory = mmap.mmap(file.fileno(), _LAYOUT.size)
        self._pauses = _STOP

    def read(self) -> Tally:
        """Exact only while the workload is paused or gone."""
        values = _LAYOUT.unpack_from(self._memory)[2:]
        k = len(KINDS)
        return Tally(values[:k], values[k : 2 * k], *values[2 * k :])

    def ask_pause(self) -> None:
        self._pauses += 1
        self._set(_CONTROL, self._pauses)

    @property
    def paused(self) -> bool:
        """Whether the last pause asked for is in effect: no call is in progress."""
        return bool(struct.unpack_from("=Q", self._memory, _PARKED)[0] == self._pauses)

    def resume(self) -> None:
        self._set(_CONTROL, _RUN)

    def ask_stop(self) -> None:
        """For good: the workload finishes its call and ends."""
        self._set(_CONTROL, _STOP)

    def close(self) -> None:
        self._memory.close()

    def _set(self, offset: int, value: int) -> None:
        struct.pack_into("=Q", self._memory, offset, value)


def pause_all(tallies: Iterable[TallyFile]) -> bool:
    """Pauses all of them; False when one did not get there within seconds."""
    tallies = tuple(tallies)
    for tally in tallies:
        tally.ask_pause()
    return wait_until(lambda: all(tally.paused for tally in tallies), _PAUSE_SECONDS)


def wait_until(condition: Callable[[], bool], seconds: float) -> bool:
    """Asks until the answer is yes or the time is up; returns the last answer."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.1)
    return True


def eventually(condition: Callable[[], bool]) -> None:
    """Fails the test when the answer is still no after twenty seconds."""
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.005)
