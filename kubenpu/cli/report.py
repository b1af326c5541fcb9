# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl report`: who used what share of each device in a span of time, and what that cost.

Asks kubenpud over D-Bus, or reads its database. Owns how times are written on the command line and where the answer
comes from; report_lines.py adds up, report_output.py and report_page.py show.
"""

from __future__ import annotations

import argparse
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

from kubenpu.cli.bus import Feed, add_bus_argument
from kubenpu.cli.output import print_json, print_note, print_text
from kubenpu.cli.prices import read_prices
from kubenpu.cli.report_lines import make_report
from kubenpu.cli.report_output import render_csv, render_text, report_to_json
from kubenpu.cli.report_page import plan_spans, render_page
from kubenpu.model.errors import ConfigError, SourceError, UnreachableError
from kubenpu.model.usage import BY, BY_LABEL, QUARTER_MS, UsageRow

DATABASE_SECONDS, DATABASE_ROWS = 600.0, 1_000_000
_UNITS = {"m": 60, "h": 3600, "d": 86400, "w": 7 * 86400}

Usage = Callable[[str, int, int], list[UsageRow]]
"""By what, since and until when."""


@dataclass(frozen=True, slots=True)
class Source:
    """Where usage comes from. `node` "" and `simulated` None: it is not told."""

    node: str
    simulated: bool | None
    usage: Usage


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Sum up what was used in a span of time. Lines add up: workloads, what has no name, time that nobody watched, "
        "time that nobody used, and the total. - in a column: that is not known. Begin and end are moved back to a "
        "whole quarter of an hour, so adjacent reports add up."
    )
    begin, end = "begin: 90m, 24h, 7d, 2w ago, or a date and time", "end, likewise (default: all so far)"
    parser.add_argument("--since", default="7d", type=_time, metavar="TIME", help=begin)
    parser.add_argument("--until", type=_time, metavar="TIME", help=end)
    choices = f"{', '.join(BY)} or {BY_LABEL}KEY"
    parser.add_argument("--by", default="namespace", type=_by, metavar="WHAT", help=f"{choices} (default: namespace)")
    parser.add_argument("--price", type=Path, metavar="FILE", help="prices per device and hour (TOML), for the cost")
    form = parser.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print one JSON document")
    form.add_argument("--csv", action="store_true", help="print comma-separated values")
    form.add_argument("--html", type=Path, metavar="FILE", help="write a page with charts")
    add_bus_argument(parser)
    parser.add_argument("--database", type=Path, metavar="FILE", help="read this file instead of asking kubenpud")
    parser.set_defaults(func=run)


def _by(text: str) -> str:
    if text in BY or (text.startswith(BY_LABEL) and len(text) > len(BY_LABEL) and text.isprintable()):
        return text
    raise argparse.ArgumentTypeError(f"{', '.join(BY)} or {BY_LABEL}KEY")


def _time(text: str) -> int:
    try:
        return parse_time(text, time.time())
    except ConfigError as error:
        raise argparse.ArgumentTypeError(str(error)) from error


def parse_time(text: str, now: float) -> int:
    """Unix time, not before the moment that is meant. A date without an offset is this machine's."""
    ago = re.fullmatch(r"([0-9]{1,6})([mhdw])", text)
    if ago:
        return max(0, math.ceil(now - int(ago[1]) * _UNITS[ago[2]]))
    unix = re.fullmatch(r"@([0-9]{1,11})", text)
    if unix:
        return int(unix[1])
    try:
        return max(0, math.ceil(datetime.fromisoformat(text).timestamp()))
    except (ValueError, OverflowError, OSError) as error:
        raise ConfigError(f"{text} is no time", "Write 24h, 7d, 2026-11-01 or 2026-11-01T12:00:00Z") from error


def _quarter_after(now: float) -> int:
    return (int(now * 1000) // QUARTER_MS + 1) * QUARTER_MS // 1000


def run(args: argparse.Namespace) -> int:
    since, until = args.since, _quarter_after(time.time()) if args.until is None else args.until
    if since >= until:
        raise ConfigError("--since is not before --until", "Give a begin that is earlier")
    prices = read_prices(args.price) if args.price else None
    with _source(args) as source:
        rows = source.usage(args.by, since, until)
        spans = plan_spans(rows, (since, until)) if args.html else []
        parts = [(span, source.usage(args.by, max(since, span[0]), min(until, span[1]))) for span in spans]
    report = make_report(args.by, rows, (since, until), prices)
    if args.html:
        _write(args.html, render_page(report, rows, parts, source.node, source.simulated))
    elif args.json:
        print_json(report_to_json(report, source.node, source.simulated))
    else:
        print_text(render_csv(report) if args.csv else render_text(report))
    for note in (*report.notes, *(["simulated node: nobody used hardware"] if source.simulated else [])):
        print_note(note)
    return 0


@contextmanager
def _source(args: argparse.Namespace) -> Iterator[Source]:
    if args.database:
        yield Source("", None, _reader(args.database))
        return
    try:
        with Feed(args) as feed:
            node = feed.read_node()
            yield Source(node.node, node.simulated, feed.read_usage)
    except UnreachableError as error:
        raise UnreachableError(error.cause, f"{error.remedy}; or name its --database".lstrip("; ")) from error


def _reader(path: Path) -> Usage:
    from kubenpu.history.report import check_file, read_usage  # noqa: PLC0415 - SQLite

    try:
        check_file(path)
    except SourceError as error:
        raise ConfigError(error.cause, error.remedy) from error

    def read(by: str, since: int, until: int) -> list[UsageRow]:
        return read_usage(path, by, since, until, deadline_s=DATABASE_SECONDS, max_rows=DATABASE_ROWS)

    return read


def _write(path: Path, text: str) -> None:
    try:
        path.write_text(text, encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise ConfigError(f"cannot write {path}: {error.strerror}", "Name another --html") from error
