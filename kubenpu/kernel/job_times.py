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
    every = times.keys()
    for key in every:
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


def jobs_lost(pins: Pins) -> int:
    """Jobs that have no time so far: there was no room for them, or the kernel skipped the program."""
    try:
        return sum(_losses(pins))
    except FileNotFoundError:
        return 0


def _losses(pins: Pins) -> Iterator[int]:
    with bpf.Map.pinned(pins.map(LOSSES)) as losses:
        for reason in range(losses.shape.max_entries):
            yield _WORD.unpack(losses.lookup(struct.pack("=I", reason)) or bytes(_WORD.size))[0]
    for side in PROGRAMS:
        program = bpf.open_pin(pins.program(STEM, side))
        try:
            yield bpf.program_misses(program)
        finally:
            os.close(program)
