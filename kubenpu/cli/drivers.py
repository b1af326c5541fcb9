# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl drivers`: the driver tables in force, and how much of a driver's work ioctls can show at all.

Needs no daemon and no privilege. Exit code 1 when one of the operator's tables cannot be used: also a way to check a
table before it is installed.
"""

from __future__ import annotations

import argparse

from kubenpu.cli.devices import add_tables_argument
from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.devices.tables import load_tables
from kubenpu.model.device import DriverTable

_HEADER = ("DRIVER", "SUBSYSTEM", "SUBMITS", "IOCTLS", "NOTE")
_WIDE_HEADER = ("DRIVER", "SUBSYSTEM", "SUBMITS", "IOCTLS", "MATCHES", "SOURCE", "NOTE")


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "drivers",
        help="list the driver tables and what each driver lets one see",
        description="List the driver tables. SUBMITS says whether work handed to the device passes an ioctl: always, "
        "partly (there are user-mode queues too) or never. The table drm is the DRM core's and applies to every "
        "device. The numbers are in --json.",
    )
    add_format_arguments(parser)
    add_tables_argument(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    loaded = load_tables(args.drivers_dir)
    tables = sorted((loaded.core, *loaded.tables), key=lambda table: table.name)
    if args.json:
        print_json([_to_json(table) for table in tables])
    elif is_wide(args):
        print_table(_WIDE_HEADER, [_wide_row(table) for table in tables])
    else:
        print_table(_HEADER, [(*_cells(table), table.visibility_note) for table in tables])
    for error in loaded.errors:
        print_note(str(error))
    return 1 if loaded.errors else 0


def _cells(table: DriverTable) -> tuple[str, ...]:
    return table.name, table.subsystem, table.visibility.value, str(len(table.ioctls))


def _wide_row(table: DriverTable) -> tuple[str, ...]:
    matches = ",".join((*table.uevent_drivers, *table.sysfs_names))
    return *_cells(table), matches, table.source, table.visibility_note


def _to_json(table: DriverTable) -> dict[str, object]:
    return {
        "driver": table.name,
        "subsystem": table.subsystem,
        "visibility": table.visibility.value,
        "note": table.visibility_note,
        "uevent_drivers": list(table.uevent_drivers),
        "sysfs_names": list(table.sysfs_names),
        "source": table.source,
        "ioctls": [
            {"name": rule.name, "type": table.ioctl_type, "nr": rule.nr, "kind": rule.kind.label}
            for rule in table.ioctls
        ],
    }
