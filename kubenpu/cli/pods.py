# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl pods`: how much each container and each unit outside pods used each device, from the running daemon."""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from kubenpu.cli.output import add_format_arguments, is_wide, print_json, print_note, print_table
from kubenpu.exporters.scrape import DEFAULT_URL, Row, fetch
from kubenpu.model.errors import SourceError
from kubenpu.model.kinds import KINDS

DAEMON_UNREACHABLE = 3
_KIND_LABELS = tuple(kind.label for kind in KINDS)
_HEADER = ("NAMESPACE", "POD", "CONTAINER", "DEVICE", "VENDOR", *(label.upper() for label in _KIND_LABELS), "ERRORS")
_WIDE_HEADER = (*_HEADER, "WAIT SECONDS", "UNIT")


@dataclass(slots=True)
class _Line:
    """One workload on one device, as it is summed up from the samples."""

    calls: dict[str, float] = field(default_factory=dict)
    errors: float = 0.0
    wait_seconds: float | None = None


_Key = tuple[str, str, str, str, str, str]


def add_parser(subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
    parser = subparsers.add_parser(
        "pods",
        help="list what each workload used",
        description="List the ioctls of each container and each unit outside pods on each device, by kind. "
        "Failed calls are part of the counts. - in a column: that cannot be known for this driver.",
    )
    add_format_arguments(parser)
    parser.add_argument("--url", default=DEFAULT_URL, help=f"metrics address of kubenpud (default: {DEFAULT_URL})")
    parser.add_argument("-n", "--namespace", help="only this namespace")
    parser.set_defaults(func=run)


def run(args: argparse.Namespace) -> int:
    try:
        rows = fetch(args.url)
    except SourceError as error:
        print_note(str(error))
        return DAEMON_UNREACHABLE
    lines = sorted(_sum_up(rows).items())
    if args.namespace is not None:
        lines = [item for item in lines if item[0][0] == args.namespace]
    if args.json:
        simulated = any(row.name == "kubenpu_simulated" and row.value for row in rows)
        print_json([{**_to_json(key, line), "simulated": simulated} for key, line in lines])
    elif is_wide(args):
        print_table(_WIDE_HEADER, [(*_cells(key, line), _number(line.wait_seconds), key[3]) for key, line in lines])
    else:
        print_table(_HEADER, [_cells(key, line) for key, line in lines])
    for text in _notes(rows):
        print_note(text)
    return 0


def _sum_up(rows: Iterable[Row]) -> dict[_Key, _Line]:
    found: dict[_Key, _Line] = {}
    for row in rows:
        name = row.name.replace("kubenpu_host_ioctl", "kubenpu_ioctl")
        if not name.startswith("kubenpu_ioctl"):
            continue
        get = row.labels.get
        place = (get("namespace", ""), get("pod", ""), get("container", ""), get("unit", ""))
        line = found.setdefault((*place, get("device", ""), get("vendor", "")), _Line())
        if name == "kubenpu_ioctl_total":
            line.calls[get("kind", "")] = row.value
        elif name == "kubenpu_ioctl_errors_total":
            line.errors += row.value
        elif name == "kubenpu_ioctl_wait_seconds_total":
            line.wait_seconds = row.value
    return found


def _cells(key: _Key, line: _Line) -> tuple[str | None, ...]:
    namespace, pod, container, unit, device, vendor = key
    where = (namespace, pod, container) if pod or not unit else ("(host)", unit, "")
    counts = (_number(line.calls.get(label)) for label in _KIND_LABELS)
    return (*where, device, vendor, *counts, _number(line.errors))


def _number(value: float | None) -> str | None:
    if value is None:
        return None
    return str(int(value)) if value == int(value) else f"{value:.6f}"


def _to_json(key: _Key, line: _Line) -> dict[str, object]:
    namespace, pod, container, unit, device, vendor = key
    return {
        "namespace": namespace or None,
        "pod": pod or None,
        "container": container or None,
        "unit": unit or None,
        "device": device,
        "vendor": None if vendor == "-" else vendor,
        "calls": {label: int(line.calls[label]) for label in _KIND_LABELS if label in line.calls},
        "errors": int(line.errors),
        "wait_seconds": line.wait_seconds,
    }


def _notes(rows: Iterable[Row]) -> list[str]:
    notes = []
    unattributed: Counter[str] = Counter()
    for row in rows:
        if row.name == "kubenpu_simulated" and row.value:
            notes.append("simulated node: these workloads do not use hardware")
        if row.name == "kubenpu_hook_up" and not row.value:
            notes.append(f"hook {row.labels.get('hook', '?')} is off, nothing is counted: run kubenpuctl doctor")
        if row.name == "kubenpu_unattributed_ioctls" and row.value:
            unattributed[row.labels.get("device", "?")] += int(row.value)
        if row.name == "kubenpu_events_dropped_total" and row.value:
            notes.append(f"{int(row.value)} events lost: {row.labels.get('reason', '?')}")
    for device, calls in unattributed.items():
        notes.append(f"{calls} calls on {device} belong to pods that no container runtime has confirmed")
    return notes
