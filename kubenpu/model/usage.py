# SPDX-License-Identifier: Apache-2.0
"""What was used in a span of time, as the history tells it. A measure is a name; what is not known has no entry."""

from __future__ import annotations

import enum
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

BY = ("namespace", "pod", "container", "unit", "device")
BY_LABEL = "label:"
"""What usage can be summed up by: one of BY, or BY_LABEL and the key of a label."""

QUARTER_MS = 15 * 60 * 1000
"""Usage is about whole quarters of an hour: what begins and ends with one does so in every time zone."""

ACTIVE_MS = "active_ms"
ALLOCATED_MS = "allocated_ms"
UNUSED_MS = "allocated_unused_ms"
SHARE_MS = "share_ms"
BY_DEVICE_TIME_MS = "by_device_time_ms"
BY_ALLOCATION_MS = "by_allocation_ms"
BY_ACTIVITY_MS = "by_activity_ms"
RULES = (BY_DEVICE_TIME_MS, BY_ALLOCATION_MS, BY_ACTIVITY_MS)
"""How much of a device's time was divided by which rule. They are applied in this order, each to what is left of an
interval."""

PRESENT_MS = "present_ms"
UNWATCHED_MS = "unwatched_ms"
WAIT_NS = "wait_ns"
DEVICE_NS = "device_ns"
MEMORY_KIB_S = "memory_kib_s"


class Part(enum.Enum):
    """Of whom a row tells: workloads, nobody who could be named, or the device as a whole."""

    WORKLOAD = "workload"
    UNATTRIBUTED = "unattributed"
    DEVICE = "device"


@dataclass(frozen=True, slots=True)
class UsageRow:
    """Amounts of one group on one device while its driver was `vendor`. Of the names those are set that the usage was
    summed up by.

    `since` and `until`: Unix time that the stored intervals begin and end, which is where the sum does. They are those
    that ended in the whole quarters of an hour that were asked for.
    WORKLOAD and UNATTRIBUTED rows add up to the DEVICE row. Amounts: `calls.KIND`, `errors.KIND`, WAIT_NS; ACTIVE_MS
    (intervals with calls), ALLOCATED_MS (the device was given to it, of a device: to anybody) and UNUSED_MS (of that
    the intervals without calls); of a workload SHARE_MS (its part of the device's time); of a device PRESENT_MS
    (counted time), RULES (by which its time was divided) and UNWATCHED_MS (intervals that are too long to tell
    when, with calls or with somebody to whom it was given at their end). DEVICE_NS is time of engines as the driver
    tells it, MEMORY_KIB_S memory over time.
    """

    part: Part
    device: str
    vendor: str | None
    since: float
    until: float
    amounts: Mapping[str, int]
    namespace: str = ""
    pod: str = ""
    container: str = ""
    unit: str = ""
    label: str = ""


def add_up(rows: Iterable[UsageRow]) -> bool:
    """Whether workloads and what is unattributed have the calls and the divided time of their devices."""
    left: Counter[tuple[str, str | None, str]] = Counter()
    for row in rows:
        for measure, value in row.amounts.items():
            if measure.startswith("calls.") or measure in (SHARE_MS, *RULES):
                name = SHARE_MS if measure in RULES else measure
                left[row.device, row.vendor, name] += value if row.part is Part.DEVICE else -value
    return not any(left.values())
