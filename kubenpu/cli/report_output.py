# SPDX-License-Identifier: Apache-2.0
"""A report as a table, as CSV and as JSON. Knows no source; text from the node is escaped as everywhere in kubenpuctl.

In CSV a name that a spreadsheet would take for a formula gets an apostrophe in front.
"""

from __future__ import annotations

import csv
import io
import textwrap
from collections.abc import Iterator

from kubenpu.cli.output import escape, render_table, show_time
from kubenpu.cli.report_lines import (
    SPLIT,
    Line,
    Report,
    describe_split,
    device_seconds,
    idle_ms,
    idle_share,
    memory_gib_hours,
    split_of,
    wait_seconds,
)
from kubenpu.model.kinds import KIND_LABELS
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_LABEL,
    PRESENT_MS,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    UsageRow,
)

_TOLD = ("device_seconds", "memory_gib_hours")
_TIMES = {
    "active_seconds": ACTIVE_MS,
    "allocated_seconds": ALLOCATED_MS,
    "allocated_unused_seconds": UNUSED_MS,
}
_FORMULA = ("=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20")  # the same signs in full width


def render_text(report: Report) -> str:
    """The table, and what has to be known to read it."""
    table = render_table([*map(escape, header_of(report))], [cells_of(line, report) for line in report.lines])
    asked, stored = (_span(span) for span in (report.asked, report.stored))
    about = f"Asked for {asked}, stored {stored}. {escape(describe_split(report))}"
    return f"{table}\n{textwrap.fill(about, 100)}\n"


def _span(span: tuple[float, float] | None) -> str:
    return " to ".join(map(show_time, span)) if span else "nothing"


def header_of(report: Report) -> tuple[str, ...]:
    numbers = (
        "SUBMITS",
        "CALLS",
        "ERRORS",
        "WAIT S",
        "ACTIVE H",
        "ALLOC H",
        "IDLE %",
        "SHARE H",
        "DEVICE S",
        "MEM GIBH",
    )
    money = (f"COST {report.currency}",) if report.currency else ()
    return (*(column.upper() for column in report.columns), *numbers, *money)


def cells_of(line: Line, report: Report) -> tuple[str | None, ...]:
    return (*line.names, *_numbers(line), *([_money(line)] if report.currency else []))


def _numbers(line: Line) -> Iterator[str | None]:
    yield _whole(line.sum_of("calls.submit"))
    yield _whole(line.sum_of("calls."))
    yield _whole(line.sum_of("errors."))
    wait = wait_seconds(line)
    yield None if wait is None else f"{wait:.1f}"
    yield _hours(line.amounts.get(ACTIVE_MS))
    yield _hours(line.amounts.get(ALLOCATED_MS))
    idle = idle_share(line)
    yield None if idle is None else f"{idle * 100:.0f}"
    yield _hours(line.amounts.get(SHARE_MS, 0))
    seconds, memory = device_seconds(line), memory_gib_hours(line)
    yield None if seconds is None else f"{seconds:.1f}"
    yield None if memory is None else f"{memory:.2f}"


def _whole(number: int | None) -> str | None:
    return None if number is None else str(number)


def _seconds(ms: int | None) -> float | None:
    return None if ms is None else ms / 1000


def _hours(ms: int | None) -> str | None:
    return None if ms is None else f"{ms / 3_600_000:.2f}"


def _money(line: Line) -> str | None:
    return None if line.cost is None else f"{line.cost / 100:.2f}"


def render_csv(report: Report) -> str:
    """One line per line of the report; what is not known is empty. Kinds of calls have columns of their own."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    kinds = [f"calls_{kind}" for kind in KIND_LABELS]
    before = ("calls", *kinds, "errors", "wait_seconds")
    numbers = (*before, *_TIMES, "share_seconds", *_TOLD, "cost", "currency")
    names = (report.by,) if report.by.startswith(BY_LABEL) else report.columns  # a label may be called cost
    writer.writerow([*_spans(report), "kind", *map(_cell, names), *numbers])
    spans = [None if unix_s is None else show_time(unix_s) for unix_s in _spans(report).values()]
    for line in report.lines:
        values = line_to_json(line, report)
        calls = values["calls"] if isinstance(values["calls"], dict) else {}
        counts = [line.sum_of("calls."), *(calls.get(kind) for kind in KIND_LABELS)]
        rest = [values[name] for name in numbers[len(counts) : -1]]
        currency = report.currency if line.cost is not None else None
        writer.writerow([*spans, line.kind, *map(_cell, line.names), *counts, *rest, currency])
    return text.getvalue()


def _spans(report: Report) -> dict[str, float | None]:
    since, until = report.stored or (None, None)
    return {"since": since, "until": until, "asked_since": report.asked[0], "asked_until": report.asked[1]}


def _cell(name: str) -> str:
    shown = escape(name)
    return "'" + shown if shown.startswith(_FORMULA) else shown


def report_to_json(report: Report, node: str, simulated: bool | None) -> dict[str, object]:
    """Keys are stable; what is not known is null."""
    return {
        "node": node or None,
        "simulated": simulated,
        "by": report.by,
        **_spans(report),
        "currency": report.currency or None,
        "split": SPLIT,
        "lines": [line_to_json(line, report) for line in report.lines],
        "devices": [_device_to_json(device) for device in report.devices],
        "notes": list(report.notes),
    }


def line_to_json(line: Line, report: Report) -> dict[str, object]:
    names = dict(zip(report.columns, (name or None for name in line.names), strict=True))
    counted = {kind: line.amounts.get(f"calls.{kind}") for kind in KIND_LABELS}
    return {
        "kind": line.kind,
        "names": names,
        "calls": counted if any(value is not None for value in counted.values()) else None,
        "errors": line.sum_of("errors."),
        "wait_seconds": wait_seconds(line),
        **{name: _seconds(line.amounts.get(measure)) for name, measure in _TIMES.items()},
        "share_seconds": line.amounts.get(SHARE_MS, 0) / 1000,
        **dict(zip(_TOLD, (device_seconds(line), memory_gib_hours(line)), strict=True)),
        "cost": None if line.cost is None else line.cost / 100,
    }


def _device_to_json(device: UsageRow) -> dict[str, object]:
    get = device.amounts.get
    return {
        "device": device.device,
        "vendor": device.vendor,
        "present_seconds": get(PRESENT_MS, 0) / 1000,
        "active_seconds": get(ACTIVE_MS, 0) / 1000,
        "split_seconds": {name: ms / 1000 for name, ms in split_of(device).items()},
        "unwatched_seconds": get(UNWATCHED_MS, 0) / 1000,
        "idle_seconds": idle_ms(device) / 1000,
    }
