# SPDX-License-Identifier: Apache-2.0
"""From the devices of this node to the rules in the kernel: every node of a device counts for that device's slot.

Used by kubenpu-probe at boot and by kubenpud at hotplug; a lock file keeps the two apart.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubenpu.devices.chardevs import match_node
from kubenpu.devices.discovery import discover, read_module_version
from kubenpu.devices.tables import LoadedTables, calls_in_force, command_tables, complete, load_heads, rule_kinds
from kubenpu.kernel.pins import locked
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Device, Interface, IoctlRule, Node
from kubenpu.model.sample import CommandTable, DeviceRule, NodeRule

log = logging.getLogger(__name__)
MISC_MAJOR = 10
InForce = Callable[[Interface | None], tuple[IoctlRule, ...]]


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators of the node, the driver tables they were matched with, and the kinds of their calls: of DRM and
    accel devices by address, of other nodes by name."""

    devices: tuple[Device, ...]
    tables: LoadedTables
    kinds: Mapping[str, bytes]
    commands: Mapping[str, tuple[CommandTable, ...]]


def read_inventory(sysfs: Path, drivers_directory: Path) -> Inventory:
    """Reads tables and sysfs; logs what could not be used and goes on with the rest."""
    tables = load_heads(drivers_directory)
    for error in tables.errors:
        log.error("driver table left out: %s", error)
    found = discover(sysfs, tables.tables)
    for problem in found.problems:
        log.warning("device: %s", problem)
    nodes = [node for device in found.devices for node in device.nodes if not node.in_drm]
    by_node = (match_node(tables.tables, node) for node in nodes)
    vendors = {device.vendor for device in found.devices} | {match[0].name for match in by_node if match}
    tables = complete(tables, vendors)
    in_force = partial(_calls_in_force, sysfs)
    kinds = {device.address: rule_kinds(tables.core, _drm_calls(device, tables, in_force)) for device in found.devices}
    commands = {node.name: _command_tables(node, tables, in_force) for node in nodes}
    return Inventory(found.devices, tables, kinds, commands)


def _calls_in_force(sysfs: Path, interface: Interface | None) -> tuple[IoctlRule, ...]:
    return calls_in_force(interface, partial(read_module_version, sysfs)) if interface else ()


def _drm_calls(device: Device, tables: LoadedTables, in_force: InForce) -> tuple[IoctlRule, ...]:
    table = tables.by_name(device.vendor)
    return in_force(table.interface(device.subsystem) if table else None)


def _command_tables(node: Node, tables: LoadedTables, in_force: InForce) -> tuple[CommandTable, ...]:
    match = match_node(tables.tables, node)
    return command_tables(in_force(match[1] if match else None))


def has_char_nodes(inventory: Inventory) -> bool:
    """Whether there are devices whose calls do not pass drm_ioctl."""
    return any(not node.in_drm for device in inventory.devices for node in device.nodes)


def apply_rules(store: CounterStore, inventory: Inventory, run_directory: Path) -> None:
    """Makes the kernel count exactly these devices. Nodes that cannot be counted are logged and declared lost."""
    with locked(run_directory, "rules"):
        rules: list[DeviceRule] = []
        nodes: list[NodeRule] = []
        for device in inventory.devices:
            slot = store.assign_slot(device.address)
            if slot is None:
                log.error("device %s is not counted: all device slots are taken since boot", device.address)
                continue
            kinds = inventory.kinds[device.address]
            rules += [DeviceRule(node.major, node.minor, slot, kinds) for node in device.nodes if node.in_drm]
            nodes += [_node_rule(node, slot, inventory) for node in device.nodes if not node.in_drm]
        refused: list[DeviceRule | NodeRule] = [*store.write_rules(rules), *store.write_nodes(nodes)]
        for rule in refused:
            log.error("device node %d:%d is not counted: no room for it in the kernel", rule.major, rule.minor)


def _node_rule(node: Node, slot: int, inventory: Inventory) -> NodeRule:
    """A major that drivers share has minors that are no business of ours."""
    shared = node.major == MISC_MAJOR or node.name.startswith("vfio/")
    return NodeRule(node.major, node.minor, slot, inventory.commands[node.name], whole=not shared)
