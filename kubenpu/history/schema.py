# SPDX-License-Identifier: Apache-2.0
"""The file: its tables, its versions, and what is done about one that cannot be used.

MIGRATIONS is the history of the schema; a new version is one more entry. Refuses a file of a later version, one that
another kubenpud writes, and one whose content is not what was written: that is a CorruptError.
Errors of SQLite become SourceError here.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import sqlite3
import stat
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from pathlib import Path

from kubenpu.model.errors import SourceError

CACHE_KIB = 128
PAGE_BYTES = 4096
BUSY_S = 1.0  # whoever writes tries again soon, and has other work
READ_BUSY_S = 5.0
LOG_PAGES = 250
LOG_BYTES = 32 + LOG_PAGES * (24 + PAGE_BYTES)
"""Of the write-ahead log, about 1 MiB: SQLite begins it anew after a write that exceeds this, unless somebody reads."""

CUT_BUSY_S = 0.5  # shorter than BUSY_S, because nothing can be written meanwhile
CHECK_S = 10.0
"""For looking at the whole file, which takes 1.2 s for 100 MiB. What that does not show in time, use does."""

DEVICE, UNATTRIBUTED, RETIRED, DEPARTED, UNEXPLAINED = range(5)
"""Workloads that are none: the device as a whole and what no named workload explains. Of totals only: what the history
knows the owner of and the kernel no more, what the kernel has in its departed total, and the part of that of which
nobody has said whose it was."""

_TABLES = """
CREATE TABLE epoch (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE measure (id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE) STRICT;
CREATE TABLE device (id INTEGER PRIMARY KEY, address TEXT NOT NULL UNIQUE, vendor TEXT) STRICT;
CREATE TABLE measured (
    device INTEGER NOT NULL, measure INTEGER NOT NULL, PRIMARY KEY (device, measure)
) STRICT, WITHOUT ROWID;
CREATE TABLE workload (
    id INTEGER PRIMARY KEY, kind TEXT NOT NULL, namespace TEXT NOT NULL, pod TEXT NOT NULL, container TEXT NOT NULL,
    pod_uid TEXT NOT NULL, unit TEXT NOT NULL, used_ms INTEGER NOT NULL DEFAULT 0,
    UNIQUE (pod_uid, container, unit, namespace, pod, kind)
) STRICT;
INSERT INTO workload (id, kind, namespace, pod, container, pod_uid, unit) VALUES
    (0, 'device', '', '', '', '', ''), (1, 'unattributed', '', '', '', '', ''),
    (2, 'retired', '', '', '', '', ''), (3, 'departed', '', '', '', '', ''), (4, 'unexplained', '', '', '', '', '');
CREATE TABLE label (
    workload INTEGER NOT NULL, key TEXT NOT NULL, value TEXT NOT NULL, PRIMARY KEY (workload, key)
) STRICT, WITHOUT ROWID;
CREATE TABLE interval (
    id INTEGER PRIMARY KEY, epoch INTEGER NOT NULL, start_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL,
    boot_end_ms INTEGER NOT NULL, rolled INTEGER NOT NULL DEFAULT 0
) STRICT;
CREATE INDEX interval_end ON interval (end_ms);
CREATE INDEX interval_fine ON interval (rolled, id) WHERE rolled != 1;
CREATE TABLE usage (
    interval INTEGER NOT NULL, device INTEGER NOT NULL, workload INTEGER NOT NULL, measure INTEGER NOT NULL,
    value INTEGER NOT NULL, PRIMARY KEY (interval, device, workload, measure)
) STRICT, WITHOUT ROWID;
CREATE TABLE last (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, measure INTEGER NOT NULL, value INTEGER NOT NULL,
    PRIMARY KEY (workload, device, measure)
) STRICT, WITHOUT ROWID;
CREATE TABLE source (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, first_ns INTEGER NOT NULL, gone_ms INTEGER,
    PRIMARY KEY (workload, device)
) STRICT, WITHOUT ROWID;
CREATE TABLE stored (epoch INTEGER NOT NULL, boot_end_ms INTEGER NOT NULL, end_ms INTEGER NOT NULL) STRICT;
"""
_TOLD = """
CREATE TABLE told (
    workload INTEGER NOT NULL, device INTEGER NOT NULL, engine_ns INTEGER NOT NULL, first_ns INTEGER,
    gone_ms INTEGER, PRIMARY KEY (workload, device)
) STRICT, WITHOUT ROWID;
CREATE TABLE told_source (boot TEXT NOT NULL, generation INTEGER NOT NULL) STRICT;
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
# A device under another driver is another one. Not ALTER TABLE: what text a table has then is for SQLite to choose.
_DRIVERS = """
CREATE TABLE was AS SELECT id, address, vendor FROM device;
DROP TABLE device;
CREATE TABLE device (
    id INTEGER PRIMARY KEY, address TEXT NOT NULL, vendor TEXT, latest INTEGER NOT NULL DEFAULT 1
) STRICT;
CREATE UNIQUE INDEX device_latest ON device (address) WHERE latest;
INSERT INTO device (id, address, vendor) SELECT id, address, vendor FROM was;
DROP TABLE was;
"""
# What can be known changes: from which interval to which one; `last` NULL: it still can.
_KNOWN = """
CREATE TABLE was AS SELECT device, measure FROM measured;
DROP TABLE measured;
CREATE TABLE measured (
    device INTEGER NOT NULL, measure INTEGER NOT NULL, first INTEGER NOT NULL, last INTEGER,
    PRIMARY KEY (device, measure, first)
) STRICT, WITHOUT ROWID;
INSERT INTO measured SELECT device, measure, 0, NULL FROM was;
DROP TABLE was;
"""
MIGRATIONS: tuple[str, ...] = (_TABLES, _TOLD, _RULES, _DRIVERS, _KNOWN)

_CORRUPT = (
    "SQLITE_CORRUPT",
    "SQLITE_NOTADB",
    "SQLITE_ERROR",
    "SQLITE_CONSTRAINT",
    "SQLITE_MISMATCH",
    "OperationalError",
)
"""Whatever our statements, which do not change, cannot do with the file. The last: text that is none."""

READ_REMEDY = "Name a history that kubenpud wrote"


class CorruptError(SourceError):
    """The file is no database, or not a sound one."""


class DamageError(Exception):
    """A value that was read is none that was written. Within explained(), which says where."""


@contextmanager
def explained(path: Path, remedy: str = "What was counted is stored when it can be written again") -> Iterator[None]:
    """Turns errors of SQLite, and of values that it does not take, into ours."""
    try:
        yield
    except DamageError as error:
        raise CorruptError(f"{path}: {error}", remedy) from error
    except (OverflowError, UnicodeEncodeError) as error:
        raise SourceError(f"{path}: {error}") from error
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or type(error).__name__
        cause = f"{path}: {error} ({name})"
        if name.startswith(_CORRUPT):
            raise CorruptError(cause, remedy) from error
        raise SourceError(cause, remedy) from error


def whole(value: object) -> int:
    """A number that was read."""
    if isinstance(value, int):
        return value
    raise DamageError(f"{str(value)[:40]!r} is no number that was stored")


def text(value: object) -> str:
    """A name that was read."""
    if isinstance(value, str):
        return value
    raise DamageError(f"{str(value)[:40]!r} is no name that was stored")


def lock(path: Path) -> int:
    """Says that this process writes the file, until it closes this descriptor. SourceError when another one does."""
    try:
        path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(f"{path}-lock", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise _refused(path, error) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(descriptor)
        raise SourceError(f"another kubenpud writes {path}", "Give each its own history.file") from error
    return descriptor


def open_for_writing(path: Path, migrations: Sequence[str] = MIGRATIONS) -> sqlite3.Connection:
    """Makes or brings up to date what is there, for root alone. Not for two threads at once; the caller closes it."""
    try:
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
    _refuse_unreadable(path)
    mode = "ro&immutable=1" if _is_alone(path.resolve()) else "ro"
    with explained(path, READ_REMEDY):
        connection = sqlite3.connect(_uri(path, mode), timeout=READ_BUSY_S, isolation_level=None, uri=True)
        try:
            connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
            _refuse_later(connection, path, MIGRATIONS)
            _refuse_other(connection, path, MIGRATIONS)
            _refuse_earlier(connection, path)
        except (sqlite3.Error, SourceError) as error:
            connection.close()
            if getattr(error, "sqlite_errorname", "").startswith(("SQLITE_CANTOPEN", "SQLITE_READONLY")):
                remedy = f"Copy it and {path.name}-wal to a directory in which this user can write"
                raise SourceError(f"{path}: its log cannot be read where nothing can be written", remedy) from error
            raise
    return connection


def _refuse_unreadable(path: Path) -> None:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise SourceError(f"{path} is no history: no regular file", READ_REMEDY)
        if not os.access(path, os.R_OK, effective_ids=True):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
    except FileNotFoundError as error:
        raise SourceError(
            f"there is no history at {path}", "kubenpud writes it, unless history.enabled is false"
        ) from error
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "Run as root to see it") from error


def _is_alone(path: Path) -> bool:
    """Nobody has it open, all that was stored is in it, and SQLite cannot make the files that it wants beside it."""
    beside = any(path.with_name(path.name + suffix).exists() for suffix in ("-wal", "-shm"))
    return not beside and not os.access(path.parent, os.W_OK, effective_ids=True)


def cut_log(path: Path) -> None:
    """Ends a log that became too large because somebody always read. To be called when this process does not read.

    It stays for this time when another process reads or there is another trouble: who reads or writes next tells.
    """
    with suppress(OSError, sqlite3.Error):
        if path.with_name(path.name + "-wal").stat().st_size > LOG_BYTES:
            connection = sqlite3.connect(_uri(path, "rw"), timeout=CUT_BUSY_S, isolation_level=None, uri=True)
            with closing(connection):
                connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()


def _uri(path: Path, mode: str) -> str:
    escaped = re.sub(r"[%?#]", lambda found: f"%{ord(found[0]):02x}", str(path.absolute()))
    return f"file:{escaped}?mode={mode}"


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
    _refuse_other(connection, path, migrations)
    _look_through(connection, path)
    if not _version(connection):
        connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = FULL")
    connection.execute(f"PRAGMA wal_autocheckpoint = {LOG_PAGES}")
    connection.execute(f"PRAGMA journal_size_limit = {LOG_BYTES}")
    _migrate(connection, migrations)


def _migrate(connection: sqlite3.Connection, migrations: Sequence[str]) -> None:
    for number, script in enumerate(migrations[_version(connection) :], start=_version(connection) + 1):
        with transaction(connection):
            for statement in script.split(";\n"):
                connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {number}")


def _look_through(connection: sqlite3.Connection, path: Path) -> None:
    """Every page and the type of every value, as far as there is time."""
    end = time.monotonic() + CHECK_S
    connection.set_progress_handler(lambda: time.monotonic() > end, 100_000)
    try:
        (found,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    except sqlite3.OperationalError as error:
        if getattr(error, "sqlite_errorname", "") != "SQLITE_INTERRUPT":
            raise
        found = "ok"
    finally:
        connection.set_progress_handler(None, 0)
    if found != "ok":
        raise CorruptError(f"{path}: {found}", READ_REMEDY)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _refuse_later(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    version = _version(connection)
    if version > len(migrations):
        raise SourceError(
            f"{path} is of version {version}, this is version {len(migrations)}",
            "Install the later kubenpu again, or move the file away",
        )


def _refuse_other(connection: sqlite3.Connection, path: Path, migrations: Sequence[str]) -> None:
    """It has the tables of its version, and no others."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as model:
        _migrate(model, migrations[: _version(connection)])
        if _tables(model) != _tables(connection):
            raise CorruptError(f"{path} is no history: its tables are others", READ_REMEDY)


def _tables(connection: sqlite3.Connection) -> list[tuple[str, str]]:
    return connection.execute("SELECT name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite%' ORDER BY 1").fetchall()


def _refuse_earlier(connection: sqlite3.Connection, path: Path) -> None:
    version = _version(connection)
    if version == 0:
        raise SourceError(f"nothing could be stored in {path} yet", "journalctl -u kubenpud has the reason")
    if version < len(MIGRATIONS):
        raise SourceError(f"{path} is of an earlier version", "Start kubenpud, which brings it up to date")
