# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl devices`: the accelerators of this node as sysfs shows them. Needs no daemon and no privilege.

Where there is room (-o wide, --json) the counts of a kubenpud that answers at once are shown too; one that does not is
no failure.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from kubenpu.cli.bus import Feed, add_bus_argument
from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.cli.workloads import counts_to_json, show_seconds
from kubenpu.devices.discovery import discover, read_module_version
from kubenpu.devices.tables import OPERATOR_DIR, LoadedTables, complete, load_heads
from kubenpu.model.device import WHATS, Device, Node
from kubenpu.model.errors import SourceError

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import CountsRow

SYSFS = Path("/sys")
# A simulated node puts this file into its sysfs tree.
SIMULATED_MARK = "kubenpu-simulated"

_HEADER = ("DRIVER", "PCI ID", "ADDRESS", "NODES", "NUMA", "VENDOR")
_SEEN = ("SUBMITS", "MEMORY", "WAITS", "DEVICE TIME", "DEVICE MEMORY")
_WIDE_HEADER = (*_HEADER, "SUBSYSTEM", *_SEEN, "MODEL", "UUID", "KFD ID", "PARTITIONS", "SYSFS")
_COUNTS_HEADER = ("CALLS", "ERRORS", "WAIT SECONDS")
_PATIENCE_S = 0.5

Counted = Mapping[str, "CountsRow"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the accelerators of this node. VENDOR is -: no driver table fits, so calls count by the DRM core's table "
        "only. SUBMITS, MEMORY and WAITS (with -o wide): whether work handed to the device, its memory and waiting for "
        "it pass an ioctl; DEVICE TIME and DEVICE MEMORY: whether the driver tells them; none: there is nothing to "
        "submit; -: not known. PARTITIONS: the device that an Instinct partition belongs to, or the MIG instances of a "
        "GPU, as GPU instance or GPU/compute instance. With -o wide and --json the counts of each device are shown "
        "too, if kubenpud runs."
    )
    add_format_arguments(parser)
    add_bus_argument(parser)
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
    names = {device.vendor for device in inventory.devices}
    loaded = complete(loaded, names, partial(read_module_version, args.sysfs))
    simulated = (args.sysfs / SIMULATED_MARK).exists()
    if args.json:
        counted = _ask(args, simulated) or {}
        found = [{**_to_json(device, loaded, counted), "simulated": simulated} for device in inventory.devices]
        print_json(found)
    elif is_wide(args):
        _print_wide(inventory.devices, loaded, _ask(args, simulated))
    else:
        print_table(_HEADER, map(_row, inventory.devices))
    for text in (*map(str, loaded.errors), *inventory.problems, *loaded.unknown_releases):
        print_note(text)
    if simulated:
        print_note("simulated node: these devices do not exist")
    if not inventory.devices:
        where = f"{args.sysfs}/class/drm, {args.sysfs}/class/accel and among the character devices of the driver tables"
        print_note(f"no accelerator found: none in {where}; load its driver")
    return 0


def _ask(args: argparse.Namespace, simulated: bool) -> Counted | None:
    """Counts by address. None: nobody answers who counts the devices of this sysfs."""
    if args.sysfs != SYSFS and not args.bus:
        return None
    try:
        with Feed(args, _PATIENCE_S) as feed:
            node, devices = feed.read_devices()
    except SourceError:
        return None
    if node.simulated != simulated:
        return None
    return {device.address: device.counts for device in devices if device.counts is not None}


def _print_wide(devices: tuple[Device, ...], loaded: LoadedTables, counted: Counted | None) -> None:
    rows = [(*_row(device), *_wide_cells(device, loaded)) for device in devices]
    if counted is None:
        print_table(_WIDE_HEADER, rows)
    else:
        more = [_count_cells(counted.get(device.address)) for device in devices]
        print_table((*_WIDE_HEADER, *_COUNTS_HEADER), [(*a, *b) for a, b in zip(rows, more, strict=True)])


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
    kfd_gpu_id = None if device.kfd_gpu_id is None else str(device.kfd_gpu_id)
    more = (device.model, device.uuid, kfd_gpu_id, _partitions(device))
    return device.subsystem, *_visibility(device, loaded).values(), *more, device.sysfs_path


def _partitions(device: Device) -> str | None:
    if device.partition_of is not None:
        return f"of {device.partition_of}"
    pairs = ((each.gpu_instance, each.compute_instance) for each in device.instances)
    return ",".join(str(gpu) if compute is None else f"{gpu}/{compute}" for gpu, compute in pairs) or None


def _count_cells(counts: CountsRow | None) -> tuple[str | None, ...]:
    if counts is None:
        return None, None, None
    failed = None if counts.failed is None else str(counts.failed)
    return str(sum(counts.calls.values())), failed, show_seconds(counts.wait_seconds)


def _visibility(device: Device, loaded: LoadedTables) -> dict[str, str | None]:
    table = loaded.by_name(device.vendor)
    return dict.fromkeys(WHATS) | ({what: seen.value for what, seen in table.visibility.items()} if table else {})


def _to_json(device: Device, loaded: LoadedTables, counted: Counted) -> dict[str, object]:
    visibility = _visibility(device, loaded)
    counts = counted.get(device.address)
    return {
        "driver": device.driver,
        "pci_id": device.pci_id,
        "address": device.address,
        "nodes": [_node_to_json(node) for node in device.nodes],
        "numa_node": device.numa_node,
        "vendor": device.vendor,
        "subsystem": device.subsystem,
        "visibility": visibility["submit"],
        **{f"{what}_visibility": value for what, value in visibility.items()},
        "model": device.model,
        "uuid": device.uuid,
        "kfd_gpu_id": device.kfd_gpu_id,
        "partition_of": device.partition_of,
        "instances": [
            {
                "gpu_instance": each.gpu_instance,
                "compute_instance": each.compute_instance,
                "node": _node_to_json(each.node),
            }
            for each in device.instances
        ],
        "sysfs_path": device.sysfs_path,
        "counts": None if counts is None else counts_to_json(counts),
    }


def _node_to_json(node: Node) -> dict[str, object]:
    return {"name": node.name, "major": node.major, "minor": node.minor}
