# SPDX-License-Identifier: Apache-2.0
"""Keeps the history small: minutes become quarters of an hour after two days, and the oldest go when they are too old
or too many. Keeps it in time: what was stored under a clock that was wrong is dated anew when that is set.

Little at a time, so that neither a long pause nor a wrong clock costs much: per minute one quarter is summed up and ten
intervals are dropped for their age. Sums of what stays do not change; a quarter is the sum of its minutes, and reports
begin and end at one.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Iterable
from itertools import takewhile
from typing import NamedTuple

from kubenpu.history.growth import Interval, Last
from kubenpu.history.schema import DEVICE, UNEXPLAINED, transaction, whole
from kubenpu.model.usage import QUARTER_MS

HOUR_MS = 3600 * 1000
DAY_MS = 24 * HOUR_MS
MINUTES_KEPT_MS = 2 * DAY_MS
CLOCK_SET_MS = 5 * 60 * 1000
"""A clock that moves by more was wrong."""

AT_ONCE = 10
"""Intervals dropped at a time: ten times as many as come, and for their age few enough for a clock that errs."""

PAGES_AT_ONCE = 256
"""About so much is dropped at a time when there is too much: more than a minute brings, and less than ROOM_FOR_LOG."""

ROOM_FOR_LOG = 4 << 20
SPARE_PAGES = 256
"""Free pages that stay in the file to be filled again."""

# What is rolled up now has rolled = 2. Below 0 is no interval: a place for the sums while the minutes are still there.
# A 0 of a device says that the number was known.
_ROLL_UP = (
    "INSERT INTO usage SELECT -1, device, workload, measure, SUM(value) FROM usage "  # noqa: S608 - a number of ours
    "WHERE interval IN (SELECT id FROM interval WHERE rolled = 2) "
    f"GROUP BY device, workload, measure HAVING SUM(value) != 0 OR workload = {DEVICE}",
    "DELETE FROM usage WHERE interval IN (SELECT id FROM interval WHERE rolled = 2)",
    "UPDATE usage SET interval = (SELECT MAX(id) FROM interval WHERE rolled = 2) WHERE interval = -1",
)


class Bounds(NamedTuple):
    """How long the history is kept, and how large it may become, with its log."""

    retention_days: int
    max_mib: int


def clean_up(connection: sqlite3.Connection, bounds: Bounds, now_ms: int) -> None:
    with transaction(connection):
        _roll_up(connection, quarter_before(now_ms - MINUTES_KEPT_MS))
        old = "SELECT id FROM interval WHERE end_ms < ? ORDER BY end_ms LIMIT ?"
        _drop(connection, connection.execute(old, (now_ms - bounds.retention_days * DAY_MS, AT_ONCE)).fetchall())
        _drop_for_size(connection, (bounds.max_mib << 20) - ROOM_FOR_LOG)
    if _pragma(connection, "freelist_count") > SPARE_PAGES:
        connection.execute(f"PRAGMA incremental_vacuum({SPARE_PAGES})").fetchall()


def quarter_before(ms: int) -> int:
    return ms // QUARTER_MS * QUARTER_MS


def follow_clock(connection: sqlite3.Connection, boot: str, last: Last, now: Interval) -> None:
    """The wall's clock is right as it is now. When it was set since, intervals of this boot move with it: of its first
    day all (a board without a clock learned the time), later those that would not have happened yet."""
    jump_ms = (now.end_ms - now.boot_end_ms) - (last.end_ms - last.boot_end_ms)
    if abs(jump_ms) <= CLOCK_SET_MS:
        return
    connection.execute(
        "UPDATE interval SET start_ms = start_ms + ?1, end_ms = end_ms + ?1 WHERE (?2 OR end_ms > ?3) "
        "AND epoch IN (SELECT id FROM epoch WHERE substr(name, 1, length(?4) + 1) = ?4 || '/')",
        (jump_ms, now.boot_end_ms <= DAY_MS, now.end_ms, boot),
    )
    connection.execute("UPDATE workload SET used_ms = ?", (now.end_ms,))


def note_used(connection: sqlite3.Connection, workloads: Iterable[int], end_ms: int) -> None:
    """At most once an hour for each: until then its names are needed for reports."""
    connection.executemany(
        "UPDATE workload SET used_ms = ? WHERE id = ? AND used_ms < ?",
        [(end_ms, workload, end_ms - HOUR_MS) for workload in workloads],
    )


def _roll_up(connection: sqlite3.Connection, before_ms: int) -> None:
    """The oldest quarter that is in minutes becomes one interval, with the number of its last minute."""
    fine = connection.execute(
        "SELECT id, epoch, (end_ms - 1) / ?, start_ms FROM interval WHERE rolled = 0 AND id >= "
        "(SELECT id FROM interval WHERE rolled = 0 AND end_ms <= ? ORDER BY id LIMIT 1) ORDER BY id LIMIT 120",
        (QUARTER_MS, before_ms),
    ).fetchall()
    if not fine:
        return
    quarter = list(takewhile(lambda row: row[1:3] == fine[0][1:3], fine))
    first, last = quarter[0], quarter[-1]
    connection.executemany("UPDATE interval SET rolled = 2 WHERE id = ?", [(row[0],) for row in quarter])
    for statement in _ROLL_UP:
        connection.execute(statement)
    connection.execute("UPDATE interval SET rolled = 1, start_ms = ? WHERE id = ?", (first[3], last[0]))
    connection.execute("DELETE FROM interval WHERE rolled = 2")
    connection.execute("UPDATE measured SET last = ?2 WHERE last >= ?1 AND last < ?2", (first[0], last[0]))


def _drop_for_size(connection: sqlite3.Connection, most_bytes: int) -> None:
    """Old intervals may be much smaller than those that come: of them more have to go."""
    enough = _pragma(connection, "freelist_count") + PAGES_AT_ONCE
    while _used_bytes(connection) > most_bytes and _pragma(connection, "freelist_count") < enough:
        oldest = connection.execute("SELECT id FROM interval ORDER BY id LIMIT ?", (AT_ONCE,)).fetchall()
        if not oldest:
            return
        _drop(connection, oldest)


def _drop(connection: sqlite3.Connection, intervals: list[tuple[int]]) -> None:
    """With them the names that nothing refers to any more."""
    if not intervals:
        return
    connection.executemany("DELETE FROM usage WHERE interval = ?", intervals)
    connection.executemany("DELETE FROM interval WHERE id = ?", intervals)
    (oldest_ms,) = connection.execute("SELECT MIN(end_ms) FROM interval").fetchone()
    no_more = "last < (SELECT MIN(id) FROM interval) OR NOT EXISTS (SELECT 1 FROM interval)"
    connection.execute(f"DELETE FROM measured WHERE {no_more}")  # noqa: S608
    if oldest_ms is not None:
        connection.execute(
            "DELETE FROM workload WHERE id > ? AND used_ms < ? AND id NOT IN (SELECT workload FROM source) "
            "AND id NOT IN (SELECT workload FROM last) AND id NOT IN (SELECT workload FROM told)",
            (UNEXPLAINED, whole(oldest_ms) - 2 * HOUR_MS),
        )
    connection.execute("DELETE FROM label WHERE workload NOT IN (SELECT id FROM workload)")
    connection.execute(
        "DELETE FROM epoch WHERE id NOT IN (SELECT epoch FROM interval) AND id NOT IN (SELECT epoch FROM stored)"
    )


def _used_bytes(connection: sqlite3.Connection) -> int:
    pages = _pragma(connection, "page_count") - _pragma(connection, "freelist_count")
    return pages * _pragma(connection, "page_size")


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
