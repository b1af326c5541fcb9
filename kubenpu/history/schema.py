# SPDX-License-Identifier: Apache-2.0
"""The file: its tables, its versions, and what is done about one that cannot be used.

MIGRATIONS is the history of the schema; a new version is one more entry. Refuses a file of a later version. Errors of
SQLite become SourceError here, and CorruptError where the content of the file is to blame.
"""

from __future__ import annotations

import os
import re
import sqlite3
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from kubenpu.model.errors import SourceError

CACHE_KIB = 128
PAGE_BYTES = 4096
BUSY_S = 5.0
DEVICE, UNATTRIBUTED, RETIRED, DEPARTED = 0, 1, 2, 3
"""Workloads that are none: the device as a whole and what no named workload explains. Of totals only: what the history
knows the owner of and the kernel no more, and what the kernel has in its departed total."""

_TABLES = """
CREATE TABLE epoch (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE measure (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE);
CREATE TABLE device (id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE, vendor TEXT);
CREATE TABLE measured (
    device INTEGER NOT NULL, measure INTEGER NOT NULL, PRIMARY KEY (device, measure)
) WITHOUT ROWID;
CREATE TABLE workload (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL,
    pod_uid TEXT NOT NULL, unit TEXT NOT NULL, used_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pod_uid, container, unit, namespace, pod, kind)
);
INSERT INTO workload (id, kind, namespace, pod, container, pod_uid, unit) VALUES
    (0, 'device', '', '', '', '', ''), (1, 'unattributed', '', '', '', '', ''),
    (2, 'retired', '', '', '', '', ''), (3, 'departed', '', '', '', '', '');
CREATE TABLE label (
    workload INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (workload, key)
) WITHOUT ROWID;
CREATE TABLE interval (
    id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    boot_end_ms INTEGER NOT NULL, rolled INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX interval_end ON interval (end_ms);
CREATE INDEX interval_fine ON interval (rolled, id) WHERE rolled != 1;
CREATE TABLE usage (
    interval INTEGER NOT NULL, device INTEGER NOT NULL, workload INTEGER NOT NULL, measure INTEGER NOT NULL,
    value INTEGER NOT NULL, PRIMARY KEY (interval, device, workload, measure)
) WITHOUT ROWID;
CREATE TABLE last (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, measure INTEGER NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY (workload, device, measure)
) WITHOUT ROWID;
CREATE TABLE source (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, first_ns INTEGER NOT NULL, gone_ms INTEGER,
    PRIMARY KEY (workload, device)
) WITHOUT ROWID;
CREATE TABLE stored (epoch INTEGER NOT NULL, interval INTEGER NOT NULL, boot_end_ms INTEGER NOT NULL);
"""
_TOLD = """
CREATE TABLE told (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, engine_ns INTEGER NOT NULL, first_ns INTEGER,
    gone_ms INTEGER, PRIMARY KEY (workload, device)
) WITHOUT ROWID;
CREATE TABLE told_source (boot TEXT NOT NULL, generation INTEGER NOT NULL);
"""
# usage: what happened. last, source, stored: the totals of the current epoch as of the last interval, so that what
# happens next is their difference, whoever asks; told, told_source: the same of device time. They are written in the
# transaction that writes usage.
# All time was divided by activity before there was another way.
_RULES = """
INSERT OR IGNORE INTO measure (name) VALUES ('active_ms'), ('by_activity_ms');
INSERT INTO usage SELECT interval, device, workload, (SELECT id FROM measure WHERE name = 'by_activity_ms'), value
    FROM usage WHERE workload = 0 AND measure = (SELECT id FROM measure WHERE name = 'active_ms');
INSERT INTO measured SELECT device, (SELECT id FROM measure WHERE name = 'by_activity_ms')
    FROM measured WHERE measure = (SELECT id FROM measure WHERE name = 'active_ms');
"""
MIGRATIONS: tuple[str, ...] = (_TABLES, _TOLD, _RULES)

_CORRUPT = ("SQLITE_CORRUPT", "SQLITE_NOTADB")

READ_REMEDY = "Name a history that kubenpud wrote"


class CorruptError(SourceError):
    """The file is no database, or not a sound one."""


@contextmanager
def explained(path: Path, remedy: str = "What was counted is stored when it can be written again") -> Iterator[None]:
    """Turns errors of SQLite, and of values that it does not take, into ours."""
    try:
        yield
    except (OverflowError, UnicodeEncodeError) as error:
        raise SourceError(f"{path}: {error}") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        cause = f"{path}: {error} ({name})"
        if name.startswith(_CORRUPT):
            raise CorruptError(cause, remedy) from error
        raise SourceError(cause, remedy) from error


def open_for_writing(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """Makes or brings up to date what is there, for root alone. Not for two threads at once; the caller closes it."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        os.close(os.open(path, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600))  # SQLite's other files get its mode
    except OSError as error:
        raise _refused(path, error) from error
    with explained(path):
        connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        try:
            _prepare(connection, path, migrations)
        except (sqlite3.Error, SourceError):
            connection.close()
            raise
    return connection


def open_for_reading(path: Path) -> sqlite3.Connection:
    """Changes nothing. Raises SourceError when there is no history."""
    try:
        path.stat()
    except FileNotFoundError as error:
        raise SourceError(
            f"there is no history at {path}", "kubenpud writes it, unless history.enabled is false"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "Run as root to see it") from error
    with explained(path, READ_REMEDY):
        escaped = re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", str(path.absolute()))
        name = f"file:{escaped}?mode=ro"
        connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, uri=True)
        try:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            _refuse_later(connection, path, MIGRATIONS)
            _refuse_earlier(connection, path)
        except (sqlite3.Error, SourceError):
            connection.close()
            raise
    return connection


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """All of it or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")


def set_aside(path: Path, now: float) -> Path:
    """Moves a file that cannot be used, with its log, out of the way; of several only the latest is kept."""
    aside = path.with_name(f"{path.name}.corrupt-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime(now))}")
    try:
        for old in path.parent.glob(f"{path.name}.corrupt-*"):
            old.unlink(missing_ok=True)
        for suffix in ("-wal", "-shm", ""):
            with suppress(FileNotFoundError):
                path.with_name(path.name + suffix).replace(aside.with_name(aside.name + suffix))
    except OSError as error:
        raise _refused(path, error) from error
    return aside


def _refused(path: Path, error: OSError) -> SourceError:
    return SourceError(f"cannot use {path}: {error.strerror}", "Make its directory one that can be written")


def _prepare(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    _refuse_later(connection, path, migrations)
    if not _version(connection):
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute("PRAGMA journal_size_limit = 4194304")
    for number, script in enumerate(migrations[_version(connection) :], start=_version(connection) + 1):
        with transaction(connection):
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_later(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    version = _version(connection)
    if version > len(migrations):
        raise SourceError(
            f"{path} is of version {version}, this is version {len(migrations)}",
            "Install the later kubenpu again, or move the file away",
        )


def _refuse_earlier(connection: sqlite3.Connection, path: Path) -> None:
    if _version(connection) < len(MIGRATIONS):
        raise SourceError(f"{path} is of an earlier version", "Start kubenpud, which brings it up to date")
