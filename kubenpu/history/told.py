# SPDX-License-Identifier: Apache-2.0
"""Device time and memory, as drivers tell them: what is added up of them. Pure.

Apart from the counts of calls, because it is another process that adds device time up and ends its series. What the
device has and no named workload is unattributed, so lines add up.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubenpu.history.growth import Key, Totals, plan_growth
from kubenpu.history.schema import DEVICE, UNATTRIBUTED
from kubenpu.history.snapshot import Told, Total
from kubenpu.model.clients import possible


def plan_time(
    old: Totals, now: Mapping[Key, Told], departed: Mapping[int, int], goes_on: bool, now_ms: int
) -> tuple[Totals, dict[Key, int]]:
    """The totals as they are now, and by how much each grew. `departed`: by device, of series that ended. `goes_on`
    false: totals began anew while clients lived, and nobody knows what of them was stored already: nothing is."""
    known = {key: (told.engine_ns,) for key, told in now.items() if told.engine_ns is not None}
    devices = {device: values for (workload, device), values in known.items() if workload == DEVICE}
    workloads = {key: Total(values, now[key].first_ns) for key, values in known.items() if key[0] != DEVICE}
    left = {device: (departed.get(device, 0),) for device in devices}
    new, growth = plan_growth(old if goes_on else Totals(), devices, left, workloads, now_ms)
    return new, {key: ns if goes_on else 0 for key, (ns,) in growth.items()}


def plan_memory(now: Mapping[Key, Told], length_ms: int) -> dict[Key, int]:
    """Memory as it is at the end of an interval, for its length, in KiB seconds. Not of what cannot be, nor what
    a device has beside it."""
    known = possible({key: told.memory_bytes for key, told in now.items() if told.memory_bytes is not None})
    amounts = {key: size // 1024 * length_ms // 1000 for key, size in known.items()}
    rest: dict[Key, int] = {}
    for (workload, device), amount in amounts.items():
        if (DEVICE, device) in amounts:
            key = (UNATTRIBUTED, device)
            rest[key] = rest.get(key, 0) + (amount if workload == DEVICE else -amount)
    return {**amounts, **rest}
