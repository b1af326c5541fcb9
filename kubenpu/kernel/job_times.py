# SPDX-License-Identifier: Apache-2.0
"""The times of jobs that bpf/scheduler.bpf.c adds up: read and tidied by kubenpu-clients, through their pins.

Asks for the permission of the pins and for no privilege. Owns no fd beyond a call.
"""

from __future__ import annotations

import contextlib
import os
import struct
from collections.abc import Collection, Iterator, Mapping

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.pins import Pins

STEM = "scheduler"
TIMES, LOSSES = "ring_times", "scheduler_losses"
PROGRAMS = {"done": "job_done", "run": "job_run"}
"""By side, in the order in which they are attached: what is seen to begin is seen to end."""
REASONS = ("jobs_full", "times_full")
"""Why the kernel program lost a job, by index in the map."""
SKIPPED = "program_skipped"
_WORD = struct.Struct("=Q")

Times = Mapping[int, Mapping[str, int]]
"""Nanoseconds by client and ring."""


def read_times(pins: Pins) -> Times | None:
    """None: nothing is timed on this node."""
    found: dict[int, dict[str, int]] = {}
    try:
        with bpf.Map.pinned(pins.map(TIMES)) as times:
            for use, value in _entries(times):
                ring = bytes(use.ring).partition(b"\0")[0].decode(errors="replace")
                found.setdefault(use.client_id, {})[ring] = _WORD.unpack(value)[0]
    except FileNotFoundError:
        return None
    return found


def _entries(times: bpf.Map) -> Iterator[tuple[layout.RingUse, bytes]]:
    keys = times.keys()
    for key in keys:
        value = times.lookup(key)
        if value is not None:
            yield layout.RingUse.from_buffer_copy(key), value


def forget_times(pins: Pins, clients: Collection[int]) -> None:
    """Those of clients that are gone."""
    if not clients:
        return
    with contextlib.suppress(FileNotFoundError), bpf.Map.pinned(pins.map(TIMES)) as times:
        for use, _ in _entries(times):
            if use.client_id in clients:
                times.delete(bytes(use))


def jobs_lost(pins: Pins) -> dict[str, int]:
    """Jobs that have no time so far, by reason; empty while nothing is timed."""
    try:
        with bpf.Map.pinned(pins.map(LOSSES)) as losses:
            counts = [losses.lookup(struct.pack("=I", n)) or bytes(_WORD.size) for n in range(len(REASONS))]
        lost = {reason: int(_WORD.unpack(count)[0]) for reason, count in zip(REASONS, counts, strict=True)}
        return {**lost, SKIPPED: sum(_misses(pins, side) for side in PROGRAMS)}
    except FileNotFoundError:
        return {}


def _misses(pins: Pins, side: str) -> int:
    program = bpf.open_pin(pins.program(STEM, side))
    try:
        return bpf.program_misses(program)
    finally:
        os.close(program)
