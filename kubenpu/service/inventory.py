# SPDX-License-Identifier: Apache-2.0
"""From the devices of this node to the rules in the kernel: every node of a device counts for that device's slot.

Used by kubenpu-probe at boot and by kubenpud at hotplug; a lock file keeps the two apart.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from kubenpu.devices.chardevs import CharNode, event_subsystems
from kubenpu.devices.discovery import discover, read_module_version
from kubenpu.devices.tables import (
    LoadedTables,
    command_tables,
    complete,
    early_commands,
    load_heads,
    rule_arguments,
    rule_kinds,
)
from kubenpu.kernel.pins import locked
from kubenpu.kernel.store import CounterStore
from kubenpu.model.device import Argument, Device, Node
from kubenpu.model.sample import CommandTable, DeviceRule, NodeRule

log = logging.getLogger(__name__)
Trouble = tuple[int, str]  # level of logging, text


@dataclass(frozen=True, slots=True)
class Commands:
    """What calls on a node are for that do not pass drm_ioctl: all, or on one of drm and accel the `early` ones.

    `shared`: other drivers have the same major, or other calls are counted by drm_ioctl.
    """

    tables: tuple[CommandTable, ...]
    shared: bool
    early: bool = False


@dataclass(frozen=True, slots=True)
class Inventory:
    """The accelerators of the node, the driver tables they were matched with, and what their calls are: kinds and
    arguments of DRM and accel devices by address, by node the commands that file_ioctl counts. `troubles`: what could
    not be used."""

    devices: tuple[Device, ...]
    tables: LoadedTables
    kinds: Mapping[str, bytes]
    arguments: Mapping[str, Mapping[int, Argument]]
    commands: Mapping[Node, Commands]
    troubles: tuple[Trouble, ...] = ()

    @property
    def event_subsystems(self) -> frozenset[str]:
        """Subsystems whose uevents may mean other devices, besides drm and accel."""
        return event_subsystems(self.tables.tables)

    @property
    def scheduled_drivers(self) -> frozenset[str]:
        """Drivers whose jobs are to be timed, as no device of theirs tells its time."""
        tables = (self.tables.by_name(device.vendor) for device in self.devices)
        return frozenset(driver for table in tables if table is not None for driver in table.scheduled)


def read_inventory(sysfs: Path, drivers_directory: Path) -> Inventory:
    """Reads tables and sysfs; what could not be used is told, the rest goes on."""
    tables = load_heads(drivers_directory)
    found = discover(sysfs, tables.tables)
    troubles = [(logging.ERROR, f"driver table left out: {error}") for error in tables.errors]
    troubles += [(logging.WARNING, f"device: {problem}") for problem in found.problems]
    nodes = (node for device in found.devices for node in device.nodes)
    chars = [found.char_nodes[node] for node in nodes if node in found.char_nodes]
    names = {device.vendor for device in found.devices} | {char.table.name for char in chars}
    tables = complete(tables, names, partial(read_module_version, sysfs))
    troubles += [(logging.WARNING, f"{unknown}: its calls count as other") for unknown in tables.unknown_releases]
    calls = {device.address: tables.calls(device) for device in found.devices}
    return Inventory(
        devices=found.devices,
        tables=tables,
        kinds={address: rule_kinds(tables.core, rules) for address, rules in calls.items()},
        arguments={address: rule_arguments(tables.core, rules) for address, rules in calls.items()},
        commands={char.node: _commands(char, tables) for char in chars} | dict(_early(found.devices, tables)),
        troubles=tuple(troubles),
    )


def tell(troubles: Iterable[Trouble], told: frozenset[Trouble] = frozenset()) -> frozenset[Trouble]:
    """Logs those that were not `told` before. Returns what to pass next time."""
    now = frozenset(troubles)
    for level, text in sorted(now - told):
        log.log(level, "%s", text)
    return now


def _commands(char: CharNode, tables: LoadedTables) -> Commands:
    table = tables.by_name(char.table.name)
    return Commands(command_tables(table.interfaces[char.interface].ioctls if table else ()), char.shared)


def _early(devices: Iterable[Device], tables: LoadedTables) -> Iterator[tuple[Node, Commands]]:
    for device in devices:
        commands = early_commands(tables.calls(device))
        for node in device.nodes:
            if commands and node.in_drm:
                yield node, Commands(commands, shared=True, early=True)


def needs_file_ioctl(inventory: Inventory) -> bool:
    """Whether there are calls that do not pass drm_ioctl."""
    return bool(inventory.commands)


def apply_rules(store: CounterStore, inventory: Inventory, run_directory: Path) -> tuple[Trouble, ...]:
    """Makes the kernel count exactly these devices. Returns which are not counted; their calls are declared lost."""
    troubles: list[Trouble] = []
    with locked(run_directory, "rules"):
        slots: dict[str, int] = {}
        for device in inventory.devices:
            slot = store.assign_slot(device.address)
            if slot is None:
                text = f"device {device.address} is not counted: all device slots are taken since boot"
                troubles.append((logging.ERROR, text))
            else:
                slots[device.address] = slot
        refused: list[DeviceRule | NodeRule] = [
            *store.write_rules(_drm_rules(inventory, slots)),
            *store.write_nodes(_node_rules(inventory, slots)),
        ]
    for rule in refused:
        text = f"device node {rule.major}:{rule.minor} is not counted: no room for it in the kernel"
        troubles.append((logging.ERROR, text))
    return tuple(troubles)


def _drm_rules(inventory: Inventory, slots: Mapping[str, int]) -> Iterator[DeviceRule]:
    for device in inventory.devices:
        kinds, arguments = inventory.kinds[device.address], inventory.arguments[device.address]
        for node in device.nodes:
            if node.in_drm and device.address in slots:
                yield DeviceRule(node.major, node.minor, slots[device.address], kinds, arguments)


def _node_rules(inventory: Inventory, slots: Mapping[str, int]) -> Iterator[NodeRule]:
    gpus = {
        device.kfd_gpu_id: slots[device.address]
        for device in inventory.devices
        if device.kfd_gpu_id is not None and device.address in slots
    }
    for device in inventory.devices:
        for node in device.nodes:
            known = inventory.commands.get(node)
            if known is not None:
                slot = slots.get(device.address)
                yield NodeRule(
                    node.major, node.minor, slot, known.tables, whole=not known.shared, gpus=gpus, early=known.early
                )
