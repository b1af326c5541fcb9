# SPDX-License-Identifier: Apache-2.0
"""Device time and memory, as drivers tell them: what they grew by since they were stored last. Pure.

Apart from the counts of calls, because it is another process that adds device time up and ends its series. Its totals
are known by when they began: one that began later is another one, and all of it is new; one that is missing may be back
when its name is. What the device has and no named workload is unattributed, so lines add up.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from kubenpu.history.schema import DEVICE, UNATTRIBUTED

FORGET_MS = 24 * 3600 * 1000
"""A name that was lost for so long does not come back."""

Key = tuple[int, int]
"""Numbers of workload and device."""


class Told(NamedTuple):
    """Totals of one workload, or of a whole device, and the memory it has. None: the driver does not tell it."""

    engine_ns: int | None
    memory_bytes: int | None
    first_ns: int

    def plus(self, other: Told) -> Told:
        return Told(
            _sum(self.engine_ns, other.engine_ns),
            _sum(self.memory_bytes, other.memory_bytes),
            min(self.first_ns, other.first_ns),
        )


class Last(NamedTuple):
    """The device time that was stored, of which total, and when it was seen last (CLOCK_BOOTTIME)."""

    engine_ns: int
    first_ns: int
    seen_ms: int


def _sum(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else one + other


def plan_time(
    old: Mapping[Key, Last], now: Mapping[Key, Told], goes_on: bool, now_ms: int
) -> tuple[dict[Key, Last], dict[Key, int]]:
    """What is remembered, and by how much each grew. `goes_on` false: totals began anew while clients lived, and nobody
    knows what of them was stored already: nothing is, this time."""
    last = {key: each for key, each in old.items() if now_ms - each.seen_ms <= FORGET_MS}
    grown = {}
    for key, told in now.items():
        if told.engine_ns is None:
            continue
        before = last.get(key)
        stored = before.engine_ns if goes_on and before is not None and before.first_ns >= told.first_ns else 0
        last[key] = Last(max(told.engine_ns, stored), told.first_ns, now_ms)
        grown[key] = max(told.engine_ns - stored, 0) if goes_on else 0
    return last, _with_unattributed(grown)


def plan_memory(now: Mapping[Key, Told], length_ms: int) -> dict[Key, int]:
    """Memory as it is at the end of an interval, for its length, in KiB seconds."""
    known = ((key, told.memory_bytes) for key, told in now.items() if told.memory_bytes is not None)
    return _with_unattributed({key: size // 1024 * length_ms // 1000 for key, size in known})


def _with_unattributed(amounts: dict[Key, int]) -> dict[Key, int]:
    rest: dict[Key, int] = {}
    for (workload, device), amount in amounts.items():
        key = (UNATTRIBUTED, device)
        rest[key] = rest.get(key, 0) + (amount if workload == DEVICE else -amount)
    return {**amounts, **rest}
