# SPDX-License-Identifier: Apache-2.0
"""From the devices of this node to the rules in the kernel: every node of a device counts for that device's slot.

Used by kubenpu-probe at boot and by kubenpud at hotplug; a lock file keeps the two apart.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from kubenpu.devices.discovery import discover
from kubenpu.devices.tables import LoadedTables, load_tables, rule_kinds
from kubenpu.kernel.pins import locked
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Device
from kubenpu.model.sample import DeviceRule

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators of the node and the driver tables they were matched with."""

    devices: tuple[Device, ...]
    tables: LoadedTables


def read_inventory(sysfs: Path, drivers_directory: Path) -> Inventory:
    """Reads tables and sysfs; logs what could not be used and goes on with the rest."""
    tables = load_tables(drivers_directory)
    for error in tables.errors:
        log.error("driver table left out: %s", error)
    found = discover(sysfs, tables.tables)
    for problem in found.problems:
        log.warning("device: %s", problem)
    return Inventory(found.devices, tables)


def apply_rules(store: CounterStore, inventory: Inventory, run_directory: Path) -> None:
    """Makes the kernel count exactly these devices. Nodes that cannot be counted are logged and declared lost."""
    with locked(run_directory, "rules"):
        rules = []
        for device in inventory.devices:
            slot = store.assign_slot(device.address)
            if slot is None:
                log.error("device %s is not counted: all device slots are taken since boot", device.address)
                continue
            kinds = rule_kinds(inventory.tables.core, inventory.tables.by_name(device.vendor))
            rules += [DeviceRule(node.major, node.minor, slot, kinds) for node in device.nodes]
        for refused in store.write_rules(rules):
            log.error("device node %d:%d is not counted: its minor is too high", refused.major, refused.minor)
