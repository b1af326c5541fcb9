# SPDX-License-Identifier: Apache-2.0
"""From the devices of this node to the rules in the kernel: every node of a device counts for that device's slot.

Used by kubenpu-probe at boot and by kubenpud at hotplug; a lock file keeps the two apart.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubenpu.devices.discovery import discover, read_module_version
from kubenpu.devices.tables import LoadedTables, calls_in_force, complete, load_heads, rule_kinds
from kubenpu.kernel.pins import locked
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Device
from kubenpu.model.sample import DeviceRule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators of the node, the driver tables they were matched with, and the kinds of their calls."""

    devices: tuple[Device, ...]
    tables: LoadedTables
    kinds: Mapping[str, bytes]


def read_inventory(sysfs: Path, drivers_directory: Path) -> Inventory:
    """Reads tables and sysfs; logs what could not be used and goes on with the rest."""
    tables = load_heads(drivers_directory)
    for error in tables.errors:
        log.error("driver table left out: %s", error)
    found = discover(sysfs, tables.tables)
    for problem in found.problems:
        log.warning("device: %s", problem)
    tables = complete(tables, {device.vendor for device in found.devices})
    kinds = {device.address: _read_kinds(device, tables, sysfs) for device in found.devices}
    return Inventory(found.devices, tables, kinds)


def _read_kinds(device: Device, tables: LoadedTables, sysfs: Path) -> bytes:
    table = tables.by_name(device.vendor)
    interface = table.interface(device.subsystem) if table else None
    calls = calls_in_force(interface, partial(read_module_version, sysfs)) if interface else ()
    return rule_kinds(tables.core, calls)


def has_char_nodes(inventory: Inventory) -> bool:
    """Whether there are devices whose calls do not pass drm_ioctl."""
    return any(not node.in_drm for device in inventory.devices for node in device.nodes)


def apply_rules(store: CounterStore, inventory: Inventory, run_directory: Path) -> None:
    """Makes the kernel count exactly these devices. Nodes that cannot be counted are logged and declared lost."""
    with locked(run_directory, "rules"):
        rules = []
        for device in inventory.devices:
            slot = store.assign_slot(device.address)
            if slot is None:
                log.error("device %s is not counted: all device slots are taken since boot", device.address)
                continue
            kinds = inventory.kinds[device.address]
            rules += [DeviceRule(node.major, node.minor, slot, kinds) for node in device.nodes]
        for refused in store.write_rules(rules):
            log.error("device node %d:%d is not counted: its minor is too high", refused.major, refused.minor)
