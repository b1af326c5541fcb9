# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods --idle`: where what the kubelet has given and what was used differ, from the running daemon.

Devices that a container holds without a call to them, and those that it uses without having been given them. Who makes
no call is idle only where the driver shows all submissions. What of an allocation is not known is told and not judged.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

from kubenpu.cli.bus import Feed
from kubenpu.cli.output import is_wide, print_json, print_note, print_table
from kubenpu.cli.workloads import find_notes
from kubenpu.devices.tables import load_heads
from kubenpu.model.device import Visibility

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import CounterRow, DeviceRow
    from kubenpu.model.allocation import Allocation

IDLE, SILENT, NOT_ALLOCATED, UNKNOWN = "idle", "no calls", "not allocated", "not known"
DEFAULT_MINUTES = 10
_HEADER = ("NAMESPACE", "POD", "CONTAINER", "DEVICE", "STATE", "IDLE MINUTES", "RESOURCE", "DEVICE ID")
_FIRST_TO_GO = ("DEVICE ID", "RESOURCE", "CONTAINER")
_WIDE_HEADER = (*_HEADER, "CLAIM", "POD UID")


@dataclass(frozen=True, slots=True)
class Mismatch:
    """One line; what is not known is None. `idle_minutes`: whole ones, as far as kubenpud has looked."""

    state: str
    namespace: str
    pod: str
    container: str
    device: str | None
    idle_minutes: int | None = None
    resource: str | None = None
    device_id: str | None = None
    claim: str | None = None
    pod_uid: str | None = None


def add_idle_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--idle",
        nargs="?",
        type=_minutes,
        const=DEFAULT_MINUTES,
        metavar="MINUTES",
        help="list instead the devices that the kubelet has given to containers and that they did not use for so long "
        f"(default: {DEFAULT_MINUTES}), and those they use without having been given them",
    )


def _minutes(argument: str) -> int:
    if not argument.isascii() or not argument.isdigit() or len(argument) > 7:
        raise argparse.ArgumentTypeError("not a number of minutes")
    return int(argument)


def run_idle(args: argparse.Namespace) -> int:
    with Feed(args) as feed:
        sample, allocations = feed.read(), feed.read_allocations()
    shown = _showing_all(sample.devices)
    found = [*find_idle(allocations, shown, sample.unix_s, args.idle), *find_not_allocated(sample.rows)]
    found.sort(key=lambda each: (_cells(each)[:4], each.state))
    judged = [each for each in found if each.state != UNKNOWN]
    if args.json:
        print_json([asdict(each) | {"simulated": sample.node.simulated} for each in found])
    elif is_wide(args):
        print_table(_WIDE_HEADER, [(*_cells(each), each.claim, each.pod_uid) for each in found])
    else:
        print_table(_HEADER, map(_cells, judged), _FIRST_TO_GO)
    for text in (*_unknown(found), *find_notes(sample.node, sample.rows)):
        print_note(text)
    return 0


def _showing_all(devices: Iterable[DeviceRow]) -> Iterator[str]:
    """Addresses of those to which no work goes without a call."""
    tables = load_heads()
    for each in devices:
        table = tables.by_name(each.vendor)
        shows = each.counts is not None and "submit" in each.counts.calls  # not where a release is unknown
        if shows and table and table.visibility["submit"] is Visibility.ALWAYS:
            yield each.address


def find_idle(
    allocations: Iterable[Allocation], devices: Iterable[str], unix_s: float, minutes: int
) -> Iterator[Mismatch]:
    """`devices`: those of which somebody who made no call is idle."""
    shown = frozenset(devices)
    for each in allocations:
        idle = None if each.idle_since is None else max(0, int(unix_s - each.idle_since) // 60)
        if idle is None or idle >= minutes:
            state = UNKNOWN if idle is None else IDLE if each.device in shown else SILENT
            names, claim, uid = (each.namespace, each.pod, each.container), each.claim or None, each.pod_uid or None
            yield Mismatch(state, *names, each.device, idle, each.resource, each.device_id, claim, uid)


def find_not_allocated(rows: Iterable[CounterRow]) -> Iterator[Mismatch]:
    for row in rows:
        if row.allocated is False:
            owner = row.owner
            names = (owner.namespace, owner.pod, owner.container)
            yield Mismatch(NOT_ALLOCATED, *names, row.device, pod_uid=owner.pod_uid or None)


def _cells(each: Mismatch) -> tuple[str, ...]:
    idle = "" if each.idle_minutes is None else str(each.idle_minutes)
    names = (each.namespace, each.pod, each.container, each.device or "")
    return (*names, each.state, idle, each.resource or "", each.device_id or "")


def _unknown(found: Sequence[Mismatch]) -> Iterator[str]:
    resources = sorted({each.resource or "" for each in found if each.state == UNKNOWN})
    if resources:
        yield f"not judged: what is given as {', '.join(resources)}, whose device or use is not known; -o wide has it"
