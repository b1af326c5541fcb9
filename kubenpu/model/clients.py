# SPDX-License-Identifier: Apache-2.0
"""Device time and memory of DRM clients, added up: what kubenpud knows of them.

A client is one open file of a device, however many descriptors of however many processes share it. The types are named
tuples: a dataclass costs kubenpud five times the memory.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

K = TypeVar("K")
COUNT_LIMIT = 1 << 63
"""Of a number of a driver, and of what they add up to: SQLite and most readers take no more. No device has so much."""


def possible(numbers: Mapping[K, int]) -> dict[K, int]:
    """Without those that cannot be: absent is nearer to the truth than any other number."""
    return {name: number for name, number in numbers.items() if number < COUNT_LIMIT}


class ClientUse(NamedTuple):
    """What the clients of one cgroup used of one device since `first_ns` (CLOCK_BOOTTIME), and have now.

    `cgroup_id` 0: those of cgroups whose series have ended. `memory` None: not all clients were looked at. `ended`:
    clients that were closed; what each of them used after it was last looked at is in no number. `earlier_ns`: of the
    time of all engines, that of which nobody knows when it was used: before the first look, or while nobody looked.
    """

    cgroup_id: int
    path: str
    device: str
    first_ns: int
    engine_ns: Mapping[str, int]
    memory: Mapping[str, int] | None
    ended: int
    earlier_ns: int = 0


class ClientSample(NamedTuple):
    """One look at all clients, at `taken_ns` of CLOCK_BOOTTIME; the next is at `due_ns`.

    `generation`: another one for every beginning of the totals at 0. `trouble`: what could not be looked at.
    """

    taken_ns: int
    due_ns: int
    generation: int
    uses: tuple[ClientUse, ...]
    trouble: str = ""
