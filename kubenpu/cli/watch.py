# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl watch`: line by line what each workload did in each interval, for logs and pipes.

A line per workload and device that did something; the first follows the first interval. A kubenpud that goes away is
waited for: its counts go on in the kernel meanwhile, so the next interval is a longer one.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator

from kubenpu.cli.bus import Feed, add_bus_argument, add_filter_arguments
from kubenpu.cli.output import add_wide_argument, is_wide, print_note, print_text, show_time
from kubenpu.cli.rates import Line, Sample, rate_workloads
from kubenpu.cli.workloads import find_notes, to_json
from kubenpu.config.log import quote
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import OwnerKind

LEAST_INTERVAL_S = 1.0  # kubenpud's answers are that old, at most
LONGEST_INTERVAL_S = 86400.0
_NAMES: tuple[str, ...] = ("kind", "namespace", "pod", "container", "unit", "device")
_NAMES_IF_WIDE = ("kind", "namespace", "pod", "container", "pod_uid", "container_id", "unit", "device", "vendor")
_NAMES_OF_UNKNOWN = ("kind", "pod_uid", "container_id", "device")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Print a line for each workload and device that did something, interval by interval: submits, calls and "
        "errors per second, and how many threads waited on average (the time of a wait counts when it ends). - stands "
        "for what is not known. Ends with Ctrl-C, and goes on when kubenpud is restarted."
    )
    parser.add_argument("--json", action="store_true", help="print one JSON document per line")
    add_wide_argument(parser, "fields")
    add_interval_argument(parser)
    parser.add_argument("--count", type=_count, metavar="N", help="end after so many intervals")
    add_filter_arguments(parser)
    add_bus_argument(parser)
    parser.set_defaults(func=run)


def add_interval_argument(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--interval",
        type=_seconds,
        default=2.0,
        metavar="SECONDS",
        help=f"time between two samples (default: 2, least: {LEAST_INTERVAL_S:g})",
    )


def _seconds(text: str) -> float:
    try:
        seconds = float(text)
    except ValueError:
        seconds = 0.0
    if not LEAST_INTERVAL_S <= seconds <= LONGEST_INTERVAL_S:
        raise argparse.ArgumentTypeError(f"give {LEAST_INTERVAL_S:g} to {LONGEST_INTERVAL_S:g} seconds")
    return seconds


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        raise argparse.ArgumentTypeError("give a number from 1 on")
    return int(text)


def run(args: argparse.Namespace) -> int:
    with Feed(args) as feed:
        old = feed.read()
        for text in find_notes(old.node, old.rows):
            print_note(text)
        left = args.count
        for new in _samples(feed, args.interval):
            _print(old, new, args.json, is_wide(args))
            old = new
            left = None if left is None else left - 1
            if left == 0:
                break
    return 0


def _samples(feed: Feed, interval_s: float) -> Iterator[Sample]:
    """One after each interval, without end; kubenpud's absence is told once."""
    lost = False
    while True:
        time.sleep(interval_s)
        try:
            sample = feed.read()
        except SourceError as error:
            if not lost:
                print_note(f"reconnecting: {error}")
            lost = True
            continue
        if lost:
            print_note("connected again")
        lost = False
        yield sample


def _print(old: Sample, new: Sample, as_json: bool, wide: bool) -> None:
    for line in rate_workloads(old, new):
        if line.rates is None or not line.rates.idle:
            document = line_to_json(line, old, new)
            print_text((json.dumps(document) if as_json else _logfmt(document, wide)) + "\n")
    if sys.stdout is not None:
        sys.stdout.flush()


def line_to_json(line: Line, old: Sample, new: Sample) -> dict[str, object]:
    """Keys are stable; what is not known is null."""
    rates = line.rates
    return {
        "time": show_time(new.unix_s),
        "seconds": round(new.at - old.at, 3),
        "submits_per_second": rates and _round(rates.submits),
        "calls_per_second": rates and _round(rates.calls),
        "errors_per_second": rates and _round(rates.errors),
        "threads_waiting": rates and _round(rates.waiting),
        **to_json(line.row, new.node),
    }


def _round(rate: float | None) -> float | None:
    return None if rate is None else round(rate, 3)


def _logfmt(document: dict[str, object], wide: bool) -> str:
    """The names that there are, then the rates; a name cannot forge another field."""
    names = _NAMES_IF_WIDE if wide else _NAMES
    if document["kind"] == OwnerKind.UNKNOWN.value and not wide:
        names = _NAMES_OF_UNKNOWN
    fields = {name: document[name] for name in ("time", *names) if document[name] is not None}
    for name in ("submits", "calls", "errors"):
        fields[f"{name}/s"] = document[f"{name}_per_second"]
    fields["waiting"] = document["threads_waiting"]
    if wide:
        calls = document["calls"]
        fields["calls"] = sum(calls.values()) if isinstance(calls, dict) else None
        fields["errors"] = document["errors"]
    if document["simulated"]:
        fields["simulated"] = "yes"
    return " ".join(f"{name}={'-' if value is None else quote(str(value))}" for name, value in fields.items())
