# SPDX-License-Identifier: Apache-2.0
"""A history below a directory, and snapshots as tests want them: totals that grow, minute by minute."""

from __future__ import annotations

import os
import sqlite3
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path

from kubenpu.history.recorder import Recorder
from kubenpu.history.report import read_usage
from kubenpu.history.schema import MIGRATIONS, open_for_writing
from kubenpu.history.snapshot import MEASURES, Names, Snapshot, Told, Total, Values
from kubenpu.history.upkeep import Bounds
from kubenpu.model.usage import Part, UsageRow

GPU, NPU = "0000:00:02.0", "npu.0"
WEB: Names = ("pod", "shop", "web-0", "main", "u1", "")
JOB: Names = ("pod", "ml", "train-0", "worker", "u2", "")
SSH: Names = ("host", "", "", "", "", "ssh.service")
MINUTE_MS, QUARTER_MS, HOUR_MS, DAY_MS = 60_000, 900_000, 3_600_000, 86_400_000
BEGIN_MS = 1_699_999_200_000  # a whole hour
NOTHING: Values = (0,) * len(MEASURES)
SUBMIT, OTHER, ERROR, WAIT = 0, 6, 7, 14  # places among MEASURES
ALL = frozenset(MEASURES)


def some(calls: int, errors: int = 0, wait_ns: int = 0) -> Values:
    """Totals with so many submissions."""
    values = list(NOTHING)
    values[SUBMIT], values[ERROR], values[WAIT] = calls, errors, wait_ns
    return tuple(values)


def plus(one: Values, other: Values) -> Values:
    return tuple(map(int.__add__, one, other))


@dataclass
class Rig:
    """Counts on; `unnamed` calls are the device's and nobody's."""

    path: Path
    bounds: Bounds = field(default_factory=lambda: Bounds(36500, 1024))
    epoch: str = "boot-1/7"
    boot_ms: int = 10 * MINUTE_MS
    wall_ms: int = BEGIN_MS
    counting_ms: int | None = 10 * MINUTE_MS
    totals: dict[tuple[Names, str], Values] = field(default_factory=dict)
    first_ns: dict[tuple[Names, str], int] = field(default_factory=dict)
    devices: dict[str, Values] = field(default_factory=lambda: {GPU: NOTHING, NPU: NOTHING})
    departed: dict[str, Values] = field(default_factory=lambda: {GPU: NOTHING, NPU: NOTHING})
    labels: dict[Names, dict[str, str]] = field(default_factory=dict)
    present: frozenset[str] = frozenset({GPU, NPU})
    vendors: dict[str, str | None] = field(default_factory=lambda: {GPU: "i915", NPU: None})
    measured: dict[str, frozenset[str]] = field(
        default_factory=lambda: {GPU: ALL, NPU: ALL - {"calls.submit", "errors.submit"}}
    )
    told: dict[tuple[Names, str], Told] = field(default_factory=dict)
    told_devices: dict[str, Told] = field(default_factory=dict)
    told_departed: dict[str, int] = field(default_factory=dict)
    told_generation: int = 0
    timed: frozenset[str] = frozenset({GPU})
    held: frozenset[tuple[Names, str]] | None = frozenset()

    def __post_init__(self) -> None:
        self.recorder = Recorder(self.path, self.bounds)

    def call(self, names: Names | None, calls: int, errors: int = 0, wait_ns: int = 0, device: str = GPU) -> None:
        self._made(names, some(calls, errors, wait_ns), device)

    def call_other(self, names: Names, calls: int) -> None:
        """Calls that are no submissions."""
        self._made(names, (*NOTHING[:OTHER], calls, *NOTHING[OTHER + 1 :]), GPU)

    def call_all(self, names: Names, calls: int) -> None:
        """So many calls of every kind, and one error."""
        self._made(names, plus((calls,) * ERROR + NOTHING[ERROR:], some(0, 1, calls)), GPU)

    def _made(self, names: Names | None, made: Values, device: str) -> None:
        self.devices[device] = plus(self.devices[device], made)
        if names is not None:
            self.totals[names, device] = plus(self.totals.get((names, device), NOTHING), made)
            self.first_ns.setdefault((names, device), self.boot_ms * 1_000_000)

    def retire(self, names: Names, device: str = GPU) -> None:
        self.departed[device] = plus(self.departed[device], self.totals.pop((names, device)))
        del self.first_ns[names, device]

    def begin_anew(self, epoch: str, boot_ms: int) -> None:
        """Counters that begin at nothing, counted from `boot_ms` on."""
        self.epoch, self.boot_ms, self.counting_ms = epoch, boot_ms, boot_ms
        self.totals, self.first_ns = {}, {}
        self.devices, self.departed = dict.fromkeys(self.devices, NOTHING), dict.fromkeys(self.departed, NOTHING)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            epoch=self.epoch,
            taken_ns=self.boot_ms * 1_000_000,
            unix_ms=self.wall_ms,
            counting_ns={} if self.counting_ms is None else dict.fromkeys(self.devices, self.counting_ms * 1_000_000),
            devices=dict(self.vendors),
            present=self.present,
            device_totals=dict(self.devices),
            departed=dict(self.departed),
            workloads={key: Total(values, self.first_ns[key]) for key, values in self.totals.items()},
            measured=dict(self.measured),
            held=self.held,
            labels={names: dict(labels) for names, labels in self.labels.items()},
            told=dict(self.told),
            told_devices=dict(self.told_devices),
            told_departed=dict(self.told_departed),
            told_generation=self.told_generation,
            timed=self.timed,
        )

    def step(self, ms: int = MINUTE_MS, jump_ms: int = 0) -> None:
        """Time passes, then it is stored; the wall's clock may be set meanwhile."""
        self.boot_ms += ms
        self.wall_ms += ms + jump_ms
        self.recorder.record(self.snapshot())

    def kill(self) -> None:
        """The recorder, in the middle of whatever it does; another one takes its place."""
        if self.recorder._lock is not None:
            os.close(self.recorder._lock)
        self.recorder = Recorder(self.path, self.bounds)

    def rows(self, by: str = "container", since_ms: int = 0, until_ms: int = 10**14) -> list[UsageRow]:
        return read_usage(self.path, by, since_ms / 1000, until_ms / 1000, deadline_s=60)

    def submits(self, since_ms: int = 0, until_ms: int = 10**14, device: str = GPU) -> dict[str, int]:
        """By pod or unit; `device` and `unattributed` too."""
        rows = [row for row in self.rows("pod", since_ms, until_ms) if row.device == device]
        return {
            row.pod or row.unit or row.part.value: row.amounts["calls.submit"]
            for row in rows
            if row.part is not Part.WORKLOAD or row.amounts["calls.submit"]
        }

    def times(self, measure: str, device: str = GPU) -> dict[str, int]:
        rows = [row for row in self.rows("pod") if row.device == device and measure in row.amounts]
        return {row.pod or row.unit or row.part.value: row.amounts[measure] for row in rows if row.amounts[measure]}

    def make_old(self, version: int) -> None:
        """Closes the file, and puts in its place what an earlier version would have stored."""
        self.recorder.close()
        old = self.path.with_name("old.db")
        with closing(open_for_writing(old, MIGRATIONS[:version])) as connection:
            connection.execute("ATTACH ? AS later", (str(self.path),))
            tables = "SELECT name FROM main.sqlite_schema WHERE type = 'table' AND name NOT LIKE 'sqlite%'"
            for (table,) in connection.execute(tables).fetchall():
                columns = [row[1] for row in connection.execute(f"PRAGMA main.table_info({table})")]
                names = ", ".join(columns)
                connection.execute(f"INSERT OR IGNORE INTO main.{table} ({names}) SELECT {names} FROM later.{table}")
        old.replace(self.path)

    def query(self, text: str) -> list[tuple[object, ...]]:
        connection = sqlite3.connect(self.path)
        try:
            return connection.execute(text).fetchall()
        finally:
            connection.close()
