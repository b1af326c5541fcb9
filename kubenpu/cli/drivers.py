# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl drivers`: the driver tables in force, and how much of a driver's work ioctls can show at all.

Needs no daemon and no privilege. Exit code 1 when one of the operator's tables cannot be used: also a way to check a
table before it is installed.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import fields

from kubenpu.cli.devices import add_tables_argument
from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.devices.tables import load_tables
from kubenpu.model.device import WHATS, Argument, DriverTable, Interface, IoctlRule, KindField, NodeMatch, Release

_HEADER = ("DRIVER", "SUBSYSTEM", "SUBMITS", "IOCTLS", "NOTE")
_SEEN_HEADER = ("MEMORY", "WAITS", "DEVICE TIME", "DEVICE MEMORY")
_WIDE_HEADER = ("DRIVER", "SUBSYSTEM", "SUBMITS", "IOCTLS", *_SEEN_HEADER, "READS", "MATCHES", "SOURCE", "NOTE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the driver tables. SUBMITS says whether work handed to the device passes an ioctl: always, partly (there "
        "are user-mode queues too) or never; none: there is nothing to submit. MEMORY and WAITS say it of memory and "
        "of waiting, DEVICE TIME and DEVICE MEMORY whether the driver tells them of its clients. The table drm is the "
        "DRM core's and applies to every DRM and accel device. Of drivers of subsystem char calls are counted, "
        "and not how they end. READS says what is read in the arguments of calls: their kind, the count of what they "
        "submit, their gpu, or the call in an envelope. The numbers are in --json."
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
    for text in (*map(str, loaded.errors), *loaded.notes):
        print_note(text)
    return 1 if loaded.errors else 0


def _cells(table: DriverTable) -> tuple[str, ...]:
    subsystems = dict.fromkeys(interface.subsystem for interface in table.interfaces)
    return table.name, ",".join(subsystems), table.visibility["submit"].value, str(len(list(_calls(table))))


def _wide_row(table: DriverTable) -> tuple[str | None, ...]:
    names = [
        name
        for interface in table.interfaces
        for name in (
            *interface.uevent_drivers,
            *interface.sysfs_names,
            *(node.devname or node.anonymous or "" for node in interface.nodes),
        )
    ]
    seen = (table.visibility[what].value if what in table.visibility else None for what in WHATS[1:])
    reads = sorted({_decides(rule.argument) for _, _, rule in _calls(table) if rule.argument is not None})
    matches = ",".join(dict.fromkeys(names))
    return *_cells(table), *seen, ",".join(reads) or None, matches, table.source, table.visibility_note


def _calls(table: DriverTable) -> Iterator[tuple[int, Release | None, IoctlRule]]:
    """All calls with the number of their interface; a call once for each release that numbers it."""
    for index, interface in enumerate(table.interfaces):
        yield from ((index, None, rule) for rule in interface.ioctls)
        for release in interface.releases:
            yield from ((index, release, rule) for rule in release.ioctls)


def _to_json(table: DriverTable) -> dict[str, object]:
    main = table.interfaces[0]
    return {
        "driver": table.name,
        "hardware": table.hardware,
        **({"work": table.work} if table.work else {}),
        "subsystem": main.subsystem,
        "visibility": table.visibility["submit"].value,
        **{f"{what}_visibility": seen.value if (seen := table.visibility.get(what)) else None for what in WHATS},
        "note": table.visibility_note,
        "uevent_drivers": list(main.uevent_drivers),
        "sysfs_names": list(main.sysfs_names),
        "source": table.source,
        "ioctls": [_call_json(*call) for call in _calls(table)],
        "interfaces": [_interface_json(interface) for interface in table.interfaces],
    }


def _interface_json(interface: Interface) -> dict[str, object]:
    return {
        "subsystem": interface.subsystem,
        "uevent_drivers": list(interface.uevent_drivers),
        "sysfs_names": list(interface.sysfs_names),
        "drm_names": list(interface.drm_names),
        "nodes": [_node_json(node) for node in interface.nodes],
    }


def _node_json(node: NodeMatch) -> dict[str, object]:
    values = {
        "devname": node.devname or None,
        "class": node.sysfs_class,
        "chrdev": node.chrdev,
        "major": node.major,
        "minors": node.minors,
        "anonymous": node.anonymous,
        "shared": node.shared or None,
    }
    return {key: value for key, value in values.items() if value is not None}


def _release_json(release: Release) -> dict[str, object]:
    first, last = (".".join(map(str, version)) for version in (release.first, release.last))
    return {"module": release.module, "first": first, "last": last}


def _call_json(interface: int, release: Release | None, rule: IoctlRule) -> dict[str, object]:
    document: dict[str, object] = {"name": rule.name, "type": rule.type, "nr": rule.nr, "kind": rule.kind.label}
    document["interface"] = interface
    if release is not None:
        document["release"] = _release_json(release)
    if rule.cmd is not None:
        document["cmd"] = rule.cmd
    if rule.argument is not None:
        document["argument"] = _argument_json(rule.argument)
    return document


def _decides(argument: Argument) -> str:
    """kind, count, gpu or envelope."""
    return type(argument).__name__.removesuffix("Field").lower()


def _argument_json(argument: Argument) -> dict[str, object]:
    """Its members, and what it decides."""
    document: dict[str, object] = {"decides": _decides(argument)}
    document |= {field.name: getattr(argument, field.name) for field in fields(argument)}
    if isinstance(argument, KindField):
        document["kinds"] = {str(value): kind.label for value, kind in argument.kinds.items()}
    return document
