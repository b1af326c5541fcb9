# SPDX-License-Identifier: Apache-2.0
"""Memory of devices whose drivers tell none in fdinfo, where the kernel's dmem controller knows it.

One rule says which of the two is shown, and the region says it too: a driver table with `device_memory = "never"` means
dmem, every other one fdinfo. So nothing is there twice, whichever of the sources is on. Only cgroups are read that made
calls on such a device, once for each View.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from kubenpu.model.device import Visibility
from kubenpu.model.sample import KernelSample
from kubenpu.service.inventory import Inventory

REGION = "dmem:"
Memory = Mapping[tuple[int, str], Mapping[str, int]]
"""Bytes by region of a cgroup on a device."""


def read_memory(
    inventory: Inventory | None,
    mount: Path,
    sample: KernelSample | None,
    addresses: Mapping[int, str],
    path_of: Callable[[KernelSample, int], str | None],
) -> Memory:
    """`addresses` names the device slots; `path_of` knows where a cgroup is."""
    silent = _silent(inventory) if inventory is not None else frozenset()
    if sample is None or not silent:
        return {}
    from kubenpu.kernel.dmem import is_offered, read_charged  # noqa: PLC0415 - hardly any node needs it

    users: dict[int, set[str]] = {}
    for cell in sample.cells if is_offered(mount) else ():
        if cell.cgroup_id and addresses.get(cell.device) in silent:
            users.setdefault(cell.cgroup_id, set()).add(addresses[cell.device])
    found: dict[tuple[int, str], dict[str, int]] = {}
    for cgroup_id, devices in users.items():
        path = path_of(sample, cgroup_id)
        for (device, region), size in (read_charged(mount, path, cgroup_id) if path is not None else {}).items():
            if device in devices:
                found.setdefault((cgroup_id, device), {})[REGION + region] = size
    return found


def _silent(inventory: Inventory) -> frozenset[str]:
    """Devices whose driver is known to tell no memory."""
    tables = {device.address: inventory.tables.by_name(device.vendor) for device in inventory.devices}
    never = Visibility.NEVER
    return frozenset(a for a, table in tables.items() if table and table.visibility.get("device_memory") is never)
