# SPDX-License-Identifier: Apache-2.0
"""Writes the history: what every total grew by since the last interval, in one transaction with the totals themselves.

Owns the open file, which one process at a time writes. Its data are Snapshots, of which it keeps none: a process killed
at any instruction loses and doubles nothing. Times of day are the wall's; durations are CLOCK_BOOTTIME's, which nobody
sets. Writes what changed.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import NamedTuple

from kubenpu.history.growth import (
    Growth,
    Interval,
    Key,
    Last,
    Totals,
    boot_of,
    find_late,
    happened,
    is_base,
    plan_growth,
    plan_interval,
    plan_times,
)
from kubenpu.history.ids import Ids
from kubenpu.history.schema import (
    DEVICE,
    CorruptError,
    DamageError,
    explained,
    lock,
    open_for_writing,
    set_aside,
    transaction,
    whole,
)
from kubenpu.history.snapshot import CALLS, MEASURES, Snapshot
from kubenpu.history.told import plan_memory, plan_time
from kubenpu.history.upkeep import Bounds, clean_up, follow_clock, note_used
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    DEVICE_NS,
    MEMORY_KIB_S,
    PRESENT_MS,
    RULES,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
)

log = logging.getLogger(__name__)
_ALLOCATIONS = (ALLOCATED_MS, UNUSED_MS)
_TIMES = (ACTIVE_MS, *_ALLOCATIONS, SHARE_MS, PRESENT_MS, *RULES, UNWATCHED_MS)


class Recorder:
    """The history of this node. Every method raises SourceError when the file cannot be used now."""

    def __init__(self, path: Path, bounds: Bounds) -> None:
        self._path = path
        self.bounds = bounds
        self._lock: int | None = None
        self._connection: sqlite3.Connection | None = None

    def record(self, snapshot: Snapshot, least_s: float = 0.0) -> None:
        """Stores what happened since the last time, if that is so long ago or the counters are others.

        A file that is not sound is set aside, which the error tells, and another one begun.
        """
        try:
            self._record(snapshot, least_s)
        except CorruptError as error:
            self._disconnect()
            aside = set_aside(self._path, snapshot.unix_ms / 1000)
            self._record(snapshot, 0.0)
            raise CorruptError(f"{error.cause}; it is {aside} now", "Counting goes on in a new file") from error

    def close(self) -> None:
        self._disconnect()
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    def _disconnect(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _record(self, snapshot: Snapshot, least_s: float) -> None:
        with explained(self._path):
            connection = self._open()
            with transaction(connection):
                complete = _store(connection, snapshot, least_s)
            clean_up(connection, self.bounds, snapshot.unix_ms)
        if not complete:
            log.warning("%s: what was counted until now is left out, it may have been stored before", self._path)

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None and not os.path.exists(self._path):  # noqa: PTH110 - Path.exists() raises what it does not expect
            self.close()
        if self._lock is None:
            self._lock = lock(self._path)
        if self._connection is None:
            self._connection = open_for_writing(self._path)
        return self._connection


class _Write(NamedTuple):
    """What is written, and where. `devices`: numbers by address."""

    connection: sqlite3.Connection
    ids: Ids
    snapshot: Snapshot
    interval: Interval
    devices: Mapping[str, int]


_Told = tuple[int, int, int, int]
"""Device, workload, measure, value."""


class _Grown(NamedTuple):
    """What is new. `calls`, and `worked` in nanoseconds: of the interval itself, without what names brought along."""

    totals: Growth
    calls: Mapping[Key, int]
    told: Sequence[_Told]
    worked: Mapping[Key, int]


def _store(connection: sqlite3.Connection, snapshot: Snapshot, least_s: float) -> bool:
    """False: of what the totals have nothing is stored, because nobody knows what was before (is_base)."""
    last = _read_last(connection)
    interval = plan_interval(snapshot, last)
    goes_on = last is not None and last.epoch == snapshot.epoch
    if interval.length_ms <= 0 or (goes_on and interval.length_ms < least_s * 1000):
        return True
    if last is not None and last.is_of_boot(snapshot.epoch):
        follow_clock(connection, boot_of(snapshot.epoch), last, interval)
    ids = Ids(connection)
    seen = connection.execute("SELECT 1 FROM epoch WHERE name = ?", (snapshot.epoch,)).fetchone() is not None
    base = is_base(snapshot, last, seen)
    if not goes_on:
        connection.execute("DELETE FROM last")
        connection.execute("DELETE FROM source")
    epoch = ids.one("epoch", "name", snapshot.epoch)
    connection.execute("DELETE FROM stored")
    connection.execute("INSERT INTO stored VALUES (?, ?, ?)", (epoch, interval.boot_end_ms, interval.end_ms))
    devices = {address: ids.device(address, vendor, snapshot.present) for address, vendor in snapshot.devices.items()}
    write = _Write(connection, ids, snapshot, interval, devices)
    grown = _Grown(*_grow(write), *_store_told(write, base))
    if not base:
        _store_usage(write, epoch, grown)
    _store_labels(write)
    return not base


def _read_last(connection: sqlite3.Connection) -> Last | None:
    row = connection.execute("SELECT name, boot_end_ms, end_ms FROM stored JOIN epoch ON id = stored.epoch").fetchone()
    return None if row is None else Last(row[0], whole(row[1]), whole(row[2]))


def _grow(write: _Write) -> tuple[Growth, dict[Key, int]]:
    """What all totals grew by, and the calls of the interval itself."""
    ids, snapshot, interval, devices = write.ids, write.snapshot, write.interval, write.devices
    old = _read_totals(write.connection, ids)
    here = {(ids.workload(names), devices[device]): total for (names, device), total in snapshot.workloads.items()}
    totals = {devices[device]: values for device, values in snapshot.device_totals.items()}
    departed = {devices[device]: values for device, values in snapshot.departed.items()}
    new, growth = plan_growth(old, totals, departed, here, interval.boot_end_ms)
    _write_totals(write.connection, ids, old, new)
    late = find_late(old, {key: total.first_ns for key, total in here.items()}, interval)
    return growth, happened({key: sum(values[CALLS]) for key, values in growth.items()}, late)


def _store_usage(write: _Write, epoch: int, grown: _Grown) -> None:
    connection, ids, snapshot, interval, devices = write
    cursor = connection.execute(
        "INSERT INTO interval (epoch, start_ms, end_ms, boot_end_ms) VALUES (?, ?, ?, ?)",
        (epoch, interval.start_ms, interval.end_ms, interval.boot_end_ms),
    )
    number = int(cursor.lastrowid or 0)
    usage = [(number, device, workload, measure, n) for (workload, device), measure, n in _amounts(ids, grown.totals)]
    counted = {devices[each]: ms for each, ns in snapshot.counting_ns.items() if (ms := interval.counted_ms(ns))}
    present = {devices[each] for each in snapshot.present if each in devices}
    holders: defaultdict[int, set[int]] = defaultdict(set)
    for names, device in snapshot.held or ():
        holders[devices[device]].add(ids.workload(names))
    timed = {devices[each] for each in snapshot.timed}
    worked = {key: ns for key, ns in grown.worked.items() if key[1] in timed}
    times = plan_times(grown.calls, interval, counted, present, holders=holders, worked=worked)
    usage += [(number, device, workload, ids.measure(name), n) for (workload, device), name, n in times]
    usage += [(number, *row) for row in grown.told]
    try:
        connection.executemany("INSERT INTO usage VALUES (?, ?, ?, ?, ?)", usage)
    except OverflowError as error:  # the totals themselves could be stored
        raise DamageError("a total grew by more than there can be") from error
    note_used(connection, {workload for _, _, workload, _, _ in usage}, interval.end_ms)
    _store_measured(write, number, {(device, measure) for _, device, _, measure, _ in usage}, counted)


def _amounts(ids: Ids, growth: Growth) -> Iterable[tuple[Key, int, int]]:
    """What is not 0, by number of the measure."""
    numbers = [ids.measure(name) for name in MEASURES]
    for key, values in growth.items():
        for number, value in zip(numbers, values, strict=True):
            if value:
                yield key, number, value


def _read_totals(connection: sqlite3.Connection, ids: Ids) -> Totals:
    place = {ids.measure(name): index for index, name in enumerate(MEASURES)}
    found: defaultdict[Key, list[int]] = defaultdict(lambda: [0] * len(MEASURES))
    for workload, device, measure, value in connection.execute("SELECT * FROM last"):
        if measure in place:
            found[workload, device][place[measure]] = whole(value)
    totals = Totals({key: tuple(values) for key, values in found.items()})
    for workload, device, first_ns, gone_ms in connection.execute("SELECT * FROM source"):
        totals.first_ns[workload, device] = whole(first_ns)
        totals.values.setdefault((workload, device), (0,) * len(MEASURES))
        if gone_ms is not None:
            totals.gone[workload, device] = whole(gone_ms)
    return totals


def _write_totals(connection: sqlite3.Connection, ids: Ids, old: Totals, new: Totals) -> None:
    """The rows that changed."""
    forgotten = list(old.values.keys() - new.values.keys())
    connection.executemany("DELETE FROM last WHERE workload = ? AND device = ?", forgotten)
    connection.executemany("DELETE FROM source WHERE workload = ? AND device = ?", forgotten)
    changed = {key: values for key, values in new.values.items() if values != old.values.get(key)}
    rows = []
    for key, values in changed.items():
        before = old.values.get(key) or (0,) * len(values)
        rows += [
            (*key, ids.measure(name), value)
            for name, value, was in zip(MEASURES, values, before, strict=True)
            if value != was
        ]
    connection.executemany("INSERT OR REPLACE INTO last VALUES (?, ?, ?, ?)", rows)
    sources = [
        (*key, first_ns, new.gone.get(key))
        for key, first_ns in new.first_ns.items()
        if (first_ns, new.gone.get(key)) != (old.first_ns.get(key), old.gone.get(key))
    ]
    connection.executemany("INSERT OR REPLACE INTO source VALUES (?, ?, ?, ?)", sources)


def _store_told(write: _Write, base: bool) -> tuple[list[_Told], dict[Key, int]]:
    """Device time and memory: remembers the totals and gives what is to be stored, if anything is, and the device time
    of the interval itself."""
    connection, ids, snapshot, interval, devices = write
    if not (snapshot.told_generation or base):
        return [], {}
    boot = boot_of(snapshot.epoch)
    source = connection.execute("SELECT boot, generation FROM told_source").fetchone()
    here = {(ids.workload(names), devices[device]): told for (names, device), told in snapshot.told.items()}
    now = {(DEVICE, devices[device]): told for device, told in snapshot.told_devices.items()} | here
    same_boot = source is not None and source[0] == boot
    departed = {devices[device]: ns for device, ns in snapshot.told_departed.items()}
    goes_on = not base and (not same_boot or source[1] == snapshot.told_generation)
    old = _read_time(connection) if same_boot else Totals()
    new, grown = plan_time(old, now, departed, goes_on, interval.boot_end_ms)
    _write_time(connection, new)
    connection.execute("DELETE FROM told_source")
    connection.execute("INSERT INTO told_source VALUES (?, ?)", (boot, snapshot.told_generation))
    held = plan_memory(now, interval.length_ms) if interval.watched else {}
    rows = [
        (device, workload, ids.measure(name), value)
        for name, amounts in ((DEVICE_NS, grown), (MEMORY_KIB_S, held))
        for (workload, device), value in amounts.items()
        if value or workload == DEVICE  # of the device also 0: then it is known to have been nothing
    ]
    return rows, happened(grown, find_late(old, {key: told.first_ns for key, told in here.items()}, interval))


def _read_time(connection: sqlite3.Connection) -> Totals:
    totals = Totals()
    for workload, device, ns, first_ns, gone_ms in connection.execute("SELECT * FROM told"):
        key = (workload, device)
        totals.values[key] = (whole(ns),)
        if first_ns is not None:
            totals.first_ns[key] = whole(first_ns)
        if gone_ms is not None:
            totals.gone[key] = whole(gone_ms)
    return totals


def _write_time(connection: sqlite3.Connection, new: Totals) -> None:
    rows = [(*key, ns, new.first_ns.get(key), new.gone.get(key)) for key, (ns,) in new.values.items()]
    connection.execute("DELETE FROM told")
    connection.executemany("INSERT INTO told VALUES (?, ?, ?, ?, ?)", rows)


def _store_measured(write: _Write, number: int, found: set[tuple[int, int]], counted: Collection[int]) -> None:
    """From and to which interval what can be known: of counts the driver and the hooks say it; of times that there ever
    were some, as far as somebody can tell now. Of device time and memory each interval says it by itself."""
    connection, ids, snapshot, interval, devices = write
    told = {ids.measure(name) for name in (DEVICE_NS, MEMORY_KIB_S)}
    known = {(devices[device], ids.measure(name)) for device, names in snapshot.measured.items() for name in names}
    known |= {(device, measure) for device, measure in found if measure not in told}
    silent = () if snapshot.held is not None else _ALLOCATIONS
    times = [ids.measure(name) for name in _TIMES if name not in silent] if interval.watched else []
    known |= set(product(counted, times)).intersection(connection.execute("SELECT device, measure FROM measured"))
    before = set(connection.execute("SELECT device, measure FROM measured WHERE last IS NULL"))
    here = set(devices.values())
    ended = [(number - 1, *row) for row in before - known if row[0] in here]
    connection.executemany("UPDATE measured SET last = ? WHERE device = ? AND measure = ? AND last IS NULL", ended)
    begun = [(*row, number) for row in sorted(known - before)]
    connection.executemany("INSERT INTO measured (device, measure, first) VALUES (?, ?, ?)", begun)


def _store_labels(write: _Write) -> None:
    """A pod's labels as they were first: another sandbox of it may have others, and what is told of the past stays."""
    labels = write.snapshot.labels
    rows = [(write.ids.workload(names), k, v) for names, found in labels.items() for k, v in found.items()]
    write.connection.executemany("INSERT OR IGNORE INTO label VALUES (?, ?, ?)", rows)
