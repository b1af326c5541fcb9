# SPDX-License-Identifier: Apache-2.0
"""What was used in a span of time, as the history tells it. A measure is a name; what is not known has no entry."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass

BY = ("namespace", "pod", "container", "unit", "device")
BY_LABEL = "label:"
"""What usage can be summed up by: one of BY, or BY_LABEL and the key of a label."""

ACTIVE_MS = "active_ms"
SHARE_MS = "share_ms"
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
    """Amounts of one group on one device. Of the names those are set that the usage was summed up by.

    `since` and `until`: Unix time that the stored intervals begin and end, which is where the sum does.
    WORKLOAD and UNATTRIBUTED rows add up to the DEVICE row. Amounts: `calls.KIND`, `errors.KIND`, WAIT_NS; of a
    workload ACTIVE_MS (intervals with calls) and SHARE_MS (each such interval divided by the number of workloads that
    made calls in it); of a device PRESENT_MS (counted time), ACTIVE_MS and UNWATCHED_MS (intervals with calls that are
    too long to tell when). DEVICE_NS is time of engines as the driver tells it, MEMORY_KIB_S memory over time.
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
