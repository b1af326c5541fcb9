# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods`: how much each container and each unit outside pods used each device, from the running daemon.

idle.py has what --idle shows.
"""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from kubenpu.cli.bus import Feed, add_bus_argument, add_filter_arguments
from kubenpu.cli.idle import add_idle_argument, run_idle
from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table, show_time
from kubenpu.cli.workloads import find_notes, place_of, show_seconds, to_json
from kubenpu.model.kinds import KIND_LABELS

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import CounterRow

_HEADER = ("NAMESPACE", "POD", "CONTAINER", "DEVICE", *(label.upper() for label in KIND_LABELS))
_FIRST_TO_GO = ("OTHER", "CONTEXT", "FREE", "MAP", "WAIT", "ALLOC", "CONTAINER")
"""In a narrow terminal."""
_OF_ROW = ("ERRORS", "WAIT SECONDS", "DEVICE SECONDS", "MEMORY MIB", "VENDOR", "ALIVE", "ALLOCATED", "SINCE")
_WIDE_HEADER = (*_HEADER, *_OF_ROW, "POD UID", "CONTAINER ID", "HOST KIND", "IMAGE")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "List the ioctls of each container and each unit outside pods on each device, by kind. Failed calls are part "
        "of the counts. With -o wide and --json also device time and memory, where the driver tells them. - in a "
        "column: that cannot be known for this device. On a narrow terminal long names are cut and columns left out, "
        "with -o wide nothing is."
    )
    add_format_arguments(parser)
    add_filter_arguments(parser)
    add_idle_argument(parser)
    add_bus_argument(parser)
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    if args.idle is not None:
        return run_idle(args)
    with Feed(args) as feed:
        sample = feed.read()
    rows = sorted(sample.rows, key=lambda row: (place_of(row.owner), row.device))
    if args.json:
        print_json([to_json(row, sample.node) for row in rows])
    elif is_wide(args):
        print_table(_WIDE_HEADER, [(*_cells(row), *_wide_cells(row)) for row in rows])
    else:
        gone = print_table(_HEADER, map(_cells, rows), _FIRST_TO_GO)
        if gone:
            print_note(f"no room for {', '.join(gone)}: -o wide and --json have all")
    for text in find_notes(sample.node, rows):
        print_note(text)
    return 0


def _cells(row: CounterRow) -> tuple[str | None, ...]:
    calls = row.counts.calls
    return (*place_of(row.owner), row.device, *(str(calls[k]) if k in calls else None for k in KIND_LABELS))


def _wide_cells(row: CounterRow) -> tuple[str | None, ...]:
    owner, counts = row.owner, row.counts
    return (
        None if counts.failed is None else str(counts.failed),
        show_seconds(counts.wait_seconds),
        show_seconds(row.engine_seconds),
        None if row.memory is None else f"{sum(row.memory.values()) / (1 << 20):.1f}",
        row.vendor,
        "yes" if row.alive else "no",
        None if row.allocated is None else "yes" if row.allocated else "no",
        show_time(counts.since),
        owner.pod_uid,
        owner.container_id,
        owner.host_kind.value if owner.host_kind else None,
        owner.image,
    )
