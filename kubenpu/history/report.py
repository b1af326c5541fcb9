# SPDX-License-Identifier: Apache-2.0
"""Sums the history up: usage between two times by namespace, pod, container, unit, device or label.

Opens the file for reading, for one question. An interval belongs to the quarter of an hour in which it ended, and a
question is about whole quarters, as old usage is kept in: so what is told of adjacent times adds up, whenever each was
asked. Refuses what takes longer than its deadline or gives more rows than the caller takes.
"""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from itertools import product
from pathlib import Path
from typing import NamedTuple

from kubenpu.history.schema import DEVICE, READ_REMEDY, UNATTRIBUTED, explained, open_for_reading, text, whole
from kubenpu.history.upkeep import quarter_before
from kubenpu.model.errors import SourceError
from kubenpu.model.usage import (
    ALLOCATED_MS,
    BY,
    BY_LABEL,
    PRESENT_MS,
    RULES,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
    Part,
    UsageRow,
)

_CHECK_EVERY = 20_000  # instructions of SQLite's machine, some milliseconds
_COLUMNS: Mapping[str, tuple[str, ...]] = {
    "namespace": ("namespace",),
    "pod": ("namespace", "pod", "unit"),
    "container": ("namespace", "pod", "container", "unit"),
    "unit": ("unit",),
    "device": (),
}
_PARTS = {DEVICE: Part.DEVICE, UNATTRIBUTED: Part.UNATTRIBUTED}


class _Group(NamedTuple):
    """What becomes one row. `part`: the id of a workload that is none, else -1."""

    device: int
    part: int
    names: tuple[str, ...]


def check_by(by: str) -> str:
    """The same text. Raises SourceError when nothing can be summed up by it."""
    if by in BY or (by.startswith(BY_LABEL) and len(by) > len(BY_LABEL)):
        return by
    raise SourceError(f"usage cannot be summed up by {by}", f"Use {', '.join(BY)} or {BY_LABEL}KEY")


def check_file(path: Path) -> None:
    """Raises SourceError when this is no file that reports can be read from."""
    open_for_reading(path).close()


def read_usage(
    path: Path, by: str, since: float, until: float, *, deadline_s: float, max_rows: int = 4096
) -> list[UsageRow]:
    """All rows. SourceError when there are more groups on a device than `max_rows`."""
    rows, total = read_page(path, by, since, until, deadline_s=deadline_s, page=range(max_rows))
    if total > max_rows:
        raise SourceError(f"more than {max_rows} rows", "Ask for less time, or sum up by something coarser")
    return rows


def read_page(
    path: Path, by: str, since: float, until: float, *, deadline_s: float, page: range
) -> tuple[list[UsageRow], int]:
    """Rows by device and driver, for each of them the device first, then what is unattributed, then the groups.

    `page`: which of the groups; the other rows are on every page. Also gives how many groups there are on all.
    The two times are moved back to the last whole quarter of an hour, also when that is in the future.
    """
    check_by(by)
    with explained(path, READ_REMEDY), _reading(path, deadline_s) as connection:
        low, high = (quarter_before(int(min(max(each, 0.0), 1e12) * 1000)) for each in (since, until))
        extent = "SELECT MIN(start_ms), MAX(end_ms), MIN(id), MAX(id) FROM interval WHERE end_ms > ? AND end_ms <= ?"
        begin_ms, end_ms, first, last = connection.execute(extent, (low, high)).fetchone()
        if begin_ms is None:
            return [], 0
        begin, end = whole(begin_ms) / 1000, whole(end_ms) / 1000
        amounts, total = _sum_up(connection, by, low, high, page)
        found = connection.execute("SELECT id, address, vendor FROM device ORDER BY address, id")
        devices = [(number, text(address), vendor and text(vendor)) for number, address, vendor in found]
        known = _measured(connection, first, last)
    rows = []
    for number, address, vendor in devices:
        groups = sorted((g for g in amounts if g.device == number), key=lambda g: (g.part < 0, g.part, g.names))
        measured = dict.fromkeys((*known.get(number, ()), *(name for group in groups for name in amounts[group])))
        for group in groups:
            part = _PARTS.get(group.part, Part.WORKLOAD)
            shown = {name: amounts[group].get(name, 0) for name in measured if _fits(part, name)}
            names = dict(zip(("label",) if by.startswith(BY_LABEL) else _COLUMNS[by], group.names, strict=False))
            rows.append(UsageRow(part, address, vendor, begin, end, shown, **names))
    return rows, total


def _fits(part: Part, measure: str) -> bool:
    """Device time is divided among workloads; that there was a device, and how it was divided, is said of devices.

    To nobody nothing is given.
    """
    if part is Part.DEVICE:
        return measure != SHARE_MS
    others = (ALLOCATED_MS, UNUSED_MS) if part is Part.UNATTRIBUTED else ()
    return measure not in (PRESENT_MS, UNWATCHED_MS, *RULES, *others)


def _sum_up(
    connection: sqlite3.Connection, by: str, low: int, high: int, page: range
) -> tuple[dict[_Group, dict[str, int]], int]:
    """The one query that reads much, and keeps a page of it. Columns are ours; what the caller gave is a parameter."""
    label = by.removeprefix(BY_LABEL) if by.startswith(BY_LABEL) else ""
    columns = ("label.value",) if label else tuple(f"workload.{name}" for name in _COLUMNS[by])
    names = "".join(f", COALESCE(CASE WHEN workload.id > {UNATTRIBUTED} THEN {each} END, '')" for each in columns)
    order = ", ".join(("summed.device", "2", *(str(5 + place) for place in range(len(columns))), "measure.id"))
    query = f"""
        WITH summed AS (
            SELECT usage.device, usage.workload, usage.measure, SUM(usage.value) AS value
            FROM interval CROSS JOIN usage ON usage.interval = interval.id
            WHERE interval.end_ms > ? AND interval.end_ms <= ? GROUP BY 1, 2, 3
        )
        SELECT summed.device, CASE WHEN summed.workload > {UNATTRIBUTED} THEN -1 ELSE summed.workload END,
            measure.name, SUM(summed.value){names}
        FROM summed JOIN measure ON measure.id = summed.measure JOIN workload ON workload.id = summed.workload
        LEFT JOIN label ON label.workload = summed.workload AND label.key = ?
        GROUP BY {order} ORDER BY {order}
    """  # noqa: S608
    found: dict[_Group, dict[str, int]] = {}
    last, total, used = None, 0, set()
    for device, part, measure, value, *given in connection.execute(query, (low, high, label)):
        group = _Group(device, part, tuple(map(text, given)))
        used.add(device)
        if part not in _PARTS and group != last:
            last, total = group, total + 1
        if part in _PARTS or total - 1 in page:
            found.setdefault(group, {})[text(measure)] = whole(value)
    for device, part in product(used, _PARTS):
        found.setdefault(_Group(device, part, tuple("" for _ in columns)), {})
    return found, total


def _measured(connection: sqlite3.Connection, low: int, high: int) -> dict[int, list[str]]:
    """By device, what could be known in some of these intervals."""
    known: dict[int, list[str]] = {}
    query = """
        SELECT device, name FROM measured JOIN measure ON id = measure
        WHERE first <= ? AND (last IS NULL OR last >= ?) ORDER BY device, id
    """
    for device, name in connection.execute(query, (high, low)):
        known.setdefault(device, []).append(text(name))
    return known


@contextmanager
def _reading(path: Path, deadline_s: float) -> Iterator[sqlite3.Connection]:
    """One consistent picture of the file, for so long."""
    end = time.monotonic() + deadline_s
    connection = open_for_reading(path)
    try:
        connection.set_progress_handler(lambda: time.monotonic() > end, _CHECK_EVERY)
        connection.execute("BEGIN")
        yield connection
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") == "SQLITE_INTERRUPT":
            remedy = "Ask for less time, or as root for the file: --database, which waits longer"
            raise SourceError(f"it takes longer than {deadline_s:.0f} s", remedy) from error
        raise
    finally:
        connection.close()
