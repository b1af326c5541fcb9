# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl devices`: the accelerators of this node as sysfs shows them. Needs no daemon and no privilege."""

from __future__ import annotations

import argparse
from pathlib import Path

from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.devices.discovery import discover
from kubenpu.devices.tables import OPERATOR_DIR, LoadedTables, load_heads
from kubenpu.model.device import WHATS, Device
from kubenpu.model.errors import SourceError

SYSFS = Path("/sys")
# A simulated node puts this file into its sysfs tree.
SIMULATED_MARK = "kubenpu-simulated"

_HEADER = ("DRIVER", "PCI ID", "ADDRESS", "NODES", "NUMA", "VENDOR")
_WIDE_HEADER = (*_HEADER, "SUBSYSTEM", "SUBMITS", "MEMORY", "WAITS", "SYSFS")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "devices",
        help="list the accelerators of this node",
        description="List the accelerators of this node. VENDOR is -: no driver table fits, so calls count by the "
        "DRM core's table only. SUBMITS, MEMORY and WAITS (with -o wide): whether work handed to the device, its "
        "memory and waiting for it pass an ioctl; -: not known.",
    )
    add_format_arguments(parser)
    add_tables_argument(parser)
    parser.add_argument("--sysfs", type=Path, default=SYSFS, metavar="PATH", help="where sysfs is (default: /sys)")
    parser.set_defaults(func=run)


def add_tables_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--drivers-dir",
        type=Path,
        default=OPERATOR_DIR,
        metavar="PATH",
        help=f"directory of your own driver tables (default: {OPERATOR_DIR})",
    )


def run(args: argparse.Namespace) -> int:
    loaded = load_heads(args.drivers_dir)
    try:
        inventory = discover(args.sysfs, loaded.tables)
    except SourceError as error:
        print_note(str(error))
        return 1
    if args.json:
        simulated = (args.sysfs / SIMULATED_MARK).exists()
        print_json([{**_to_json(device, loaded), "simulated": simulated} for device in inventory.devices])
    elif is_wide(args):
        print_table(_WIDE_HEADER, [(*_row(device), *_wide_cells(device, loaded)) for device in inventory.devices])
    else:
        print_table(_HEADER, [_row(device) for device in inventory.devices])
    for text in (*map(str, loaded.errors), *inventory.problems):
        print_note(text)
    if (args.sysfs / SIMULATED_MARK).exists():
        print_note("simulated node: these devices do not exist")
    if not inventory.devices:
        classes = args.sysfs / "class"
        print_note(f"no accelerator found: no card* or renderD* in {classes}/drm and no accel* in {classes}/accel")
    return 0


def _row(device: Device) -> tuple[str | None, ...]:
    return (
        device.driver,
        device.pci_id,
        device.address,
        ",".join(map(str, device.nodes)),
        None if device.numa_node is None else str(device.numa_node),
        device.vendor,
    )


def _wide_cells(device: Device, loaded: LoadedTables) -> tuple[str | None, ...]:
    return device.subsystem, *_visibility(device, loaded).values(), device.sysfs_path


def _visibility(device: Device, loaded: LoadedTables) -> dict[str, str | None]:
    table = loaded.by_name(device.vendor)
    return dict.fromkeys(WHATS) | ({what: seen.value for what, seen in table.visibility.items()} if table else {})


def _to_json(device: Device, loaded: LoadedTables) -> dict[str, object]:
    visibility = _visibility(device, loaded)
    return {
        "driver": device.driver,
        "pci_id": device.pci_id,
        "address": device.address,
        "nodes": [{"name": node.name, "major": node.major, "minor": node.minor} for node in device.nodes],
        "numa_node": device.numa_node,
        "vendor": device.vendor,
        "subsystem": device.subsystem,
        "visibility": visibility.pop("submit"),
        **{f"{what}_visibility": value for what, value in visibility.items()},
        "sysfs_path": device.sysfs_path,
    }
