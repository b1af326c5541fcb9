# SPDX-License-Identifier: Apache-2.0
"""Who holds a device open, and what its driver says of that client: the values that kubenpu-clients works with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple


class Holder(NamedTuple):
    """One descriptor of one task, that was started at `start_ns`. `file` is the same for all that share an open file,
    `ino` that of the device node; `client_id` what the kernel calls the open file, 0 where that is not known."""

    file: int
    cgroup_id: int
    start_ns: int
    ino: int
    major: int
    minor: int
    tgid: int
    pid: int
    fd: int
    client_id: int = 0


class Ticks(NamedTuple):
    """Time as a driver without a clock of its own tells it: busy cycles of a client, and the device's cycle counter."""

    busy: int
    clock: int


class Fdinfo(NamedTuple):
    """What one client used so far, by engine, in nanoseconds or in ticks; and the bytes it has now, by region.

    A driver that tells nothing of a kind has no entries of it. `engines`: how many of a name may work at a time, where
    that is not 1. `absurd`: numbers that were left out because they are too large to be.
    """

    client_id: int
    engine_ns: Mapping[str, int]
    ticks: Mapping[str, Ticks]
    memory: Mapping[str, int]
    engines: Mapping[str, int] = {}
    absurd: int = 0
