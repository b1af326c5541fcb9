# SPDX-License-Identifier: Apache-2.0
"""Numbers of what has a name in the history: epochs, measures, workloads, and devices under each of their drivers.

Owns what a device is: an address with a driver. Its callers hold the transaction.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence

from kubenpu.history.snapshot import Names


class Ids:
    """Numbers for names, given out at first sight."""

    def __init__(self, connection: sqlite3.Connection) -> None:
        self._connection = connection
        self._measures: dict[str, int] = dict(connection.execute("SELECT name, id FROM measure"))
        self._workloads: dict[Names, int] = {}

    def one(self, table: str, column: str, value: str) -> int:
        return self._find(table, (column,), (value,))

    def measure(self, name: str) -> int:
        if name not in self._measures:
            self._measures[name] = self._find("measure", ("name",), (name,))
        return self._measures[name]

    def device(self, address: str, vendor: str | None, present: Collection[str]) -> int:
        """Of an address with its driver; one that is gone keeps the driver that it had."""
        latest = "SELECT id, vendor FROM device WHERE address = ? AND latest"
        before = self._connection.execute(latest, (address,)).fetchone()
        if before is None:
            return self._add_device(address, vendor)
        gone = vendor is None and address not in present
        return int(before[0]) if gone or before[1] == vendor else self._change_driver(int(before[0]), address, vendor)

    def _change_driver(self, before: int, address: str, vendor: str | None) -> int:
        """What was stored stays with the driver of that time. The totals go on, so they go along."""
        self._connection.execute("UPDATE device SET latest = 0 WHERE id = ?", (before,))
        again = "SELECT id FROM device WHERE address = ? AND vendor IS ?"
        row = self._connection.execute(again, (address, vendor)).fetchone()
        number = self._add_device(address, vendor) if row is None else int(row[0])
        self._connection.execute("UPDATE device SET latest = 1 WHERE id = ?", (number,))
        for table in ("last", "source", "told"):
            self._connection.execute(f"UPDATE {table} SET device = ? WHERE device = ?", (number, before))  # noqa: S608
        return number

    def _add_device(self, address: str, vendor: str | None) -> int:
        insert = "INSERT INTO device (address, vendor) VALUES (?, ?)"
        return int(self._connection.execute(insert, (address, vendor)).lastrowid or 0)

    def workload(self, names: Names) -> int:
        if names not in self._workloads:
            columns = ("kind", "namespace", "pod", "container", "pod_uid", "unit")
            self._workloads[names] = self._find("workload", columns, names)
        return self._workloads[names]

    def _find(self, table: str, columns: Sequence[str], values: Sequence[str]) -> int:
        """Tables and columns are ours, never text from outside."""
        where = " AND ".join(f"{column} = ?" for column in columns)
        row = self._connection.execute(f"SELECT id FROM {table} WHERE {where}", values).fetchone()  # noqa: S608
        if row is not None:
            return int(row[0])
        marks = ", ".join("?" * len(values))
        insert = f"INSERT INTO {table} ({', '.join(columns)}) VALUES ({marks})"  # noqa: S608
        return int(self._connection.execute(insert, values).lastrowid or 0)
