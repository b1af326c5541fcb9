# SPDX-License-Identifier: Apache-2.0
"""The history as a file: how large and old it becomes, versions, and what is done about one that cannot be used."""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from kubenpu.history import schema
from kubenpu.history.recorder import Recorder
from kubenpu.history.schema import CorruptError, open_for_writing
from kubenpu.history.snapshot import Names
from kubenpu.history.upkeep import AT_ONCE, Bounds
from kubenpu.model.errors import SourceError
from kubenpu.model.usage import ACTIVE_MS, BY_ACTIVITY_MS
from tests.fakes.history_rig import BEGIN_MS, DAY_MS, HOUR_MS, JOB, QUARTER_MS, SSH, WEB, Rig

NOBODY = 65534


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "state" / "usage.db")
    yield made
    made.recorder.close()


# ---- size and age ----


def test_minutes_become_quarters_without_changing_a_sum(rig: Rig) -> None:
    for minute in range(6 * 60):
        rig.call((WEB, JOB)[minute % 2], 1)
        rig.call(None, 1)
        rig.step()
    until = rig.wall_ms
    before = rig.rows(until_ms=until)
    rig.step(2 * DAY_MS)
    for _ in range(25):
        rig.step()
    assert rig.query(f"SELECT COUNT(*) FROM interval WHERE end_ms <= {until}") == [(24,)]
    assert rig.rows(until_ms=until) == before
    assert rig.submits(BEGIN_MS, BEGIN_MS + QUARTER_MS)["device"] == 15 * 2


def test_old_usage_goes_little_by_little_with_its_names(rig: Rig) -> None:
    rig.recorder.bounds = Bounds(retention_days=1, max_mib=64)
    rig.call(WEB, 5)
    rig.step()
    rig.retire(WEB)
    for _ in range(3 * AT_ONCE):
        rig.call(SSH, 1)
        rig.step(HOUR_MS)
    dropped = 30 - 24
    assert rig.query("SELECT COUNT(*) FROM interval") == [(3 * AT_ONCE + 1 - dropped,)]
    rig.call(SSH, 1)
    rig.step(10 * DAY_MS)
    assert rig.query("SELECT COUNT(*) FROM interval") == [(3 * AT_ONCE + 2 - dropped - AT_ONCE,)]
    for _ in range(3):
        rig.step()
    assert rig.submits() == {"device": 1, "unattributed": 0, "ssh.service": 1}
    assert rig.query("SELECT unit FROM workload WHERE id > 4") == [("ssh.service",)]


def test_the_file_stays_below_its_size(rig: Rig, tmp_path: Path) -> None:
    rig.recorder.bounds = Bounds(retention_days=3660, max_mib=5)
    many = [("pod", "shop", f"web-{n}", "main", f"u{n}", "") for n in range(200)]
    for _ in range(120):
        for names in many:
            rig.call(names, 1, errors=1, wait_ns=1)
        rig.step()
        assert sum(path.stat().st_size for path in (rig.path, rig.path.with_name("usage.db-wal"))) < 5 << 20
    assert rig.query("SELECT MIN(id) > 1 FROM interval") == [(1,)]
    found = rig.submits()
    assert found["device"] == sum(n for name, n in found.items() if name != "device") > 0


def test_a_node_that_became_busy_keeps_its_size(rig: Rig) -> None:
    """Then many old intervals have to go for one that comes."""
    rig.recorder.bounds = Bounds(retention_days=3660, max_mib=5)
    rig.step()
    rig.recorder._open().executescript("""
        WITH RECURSIVE n(i) AS (VALUES (2) UNION ALL SELECT i + 1 FROM n WHERE i < 6000)
        INSERT INTO interval SELECT i, epoch, i, i, i, 1 FROM n, interval WHERE id = 1;
    """)
    many: list[Names] = [("pod", "shop", f"web-{n}", "main", f"u{n}", "") for n in range(400)]
    for _ in range(45):
        for names in many:
            rig.call_all(names, 1)
        rig.step()
    assert rig.query("SELECT COUNT(*) > 1 FROM interval WHERE id > 6000") == [(1,)]
    assert rig.path.stat().st_size < 2 << 20


# ---- a file that cannot be used ----


def test_a_log_cut_short_by_a_power_cut_is_what_was_stored_before(rig: Rig) -> None:
    """The last transactions may be missing; the next one stores what they did."""
    for _ in range(3):
        rig.call(WEB, 5)
        rig.step()
    log = rig.path.with_name("usage.db-wal")
    copied = rig.path.with_name("copy.db")
    copied.write_bytes(rig.path.read_bytes())
    copied.with_name("copy.db-wal").write_bytes(log.read_bytes()[:-5000])
    rig.recorder.close()
    rig.path, rig.recorder = copied, Recorder(copied, rig.bounds)
    rig.call(WEB, 1)
    rig.step()
    assert rig.submits() == {"device": 16, "unattributed": 0, "web-0": 16}


def test_what_does_not_fit_on_the_disk_is_stored_later(rig: Rig) -> None:
    rig.call(WEB, 5)
    rig.step()
    connection = rig.recorder._open()
    (pages,) = connection.execute("PRAGMA page_count").fetchone()
    connection.execute(f"PRAGMA max_page_count = {pages}")
    many = [("pod", "shop", f"web-{n}" * 50, "main", f"u{n}", "") for n in range(200)]
    for names in many:
        rig.call(names, 1)
    with pytest.raises(SourceError, match="full"):
        rig.step()
    connection.execute("PRAGMA max_page_count = 1000000")
    rig.call(WEB, 1)
    rig.step()
    assert rig.submits()["web-0"] == 6
    assert rig.submits()["device"] == 206


def test_a_file_of_a_later_version_is_left_alone(rig: Rig) -> None:
    rig.step()
    rig.recorder.close()
    connection = sqlite3.connect(rig.path)
    connection.execute(f"PRAGMA user_version = {len(schema.MIGRATIONS) + 1}")
    connection.close()
    with pytest.raises(SourceError, match="later"):
        rig.step()
    with pytest.raises(SourceError, match="later"):
        rig.rows()
    assert list(rig.path.parent.glob("*corrupt*")) == []


def test_a_file_from_before_allocations_is_brought_up_to_date(rig: Rig) -> None:
    """All its time was divided by activity."""
    rig.step()
    rig.call(WEB, 5)
    rig.step()
    rows = rig.rows()
    rig.make_old(version=2)
    with closing(sqlite3.connect(rig.path)) as connection, connection:
        (measure,) = connection.execute("SELECT id FROM measure WHERE name = 'by_activity_ms'").fetchone()
        for table, column in (("usage", "measure"), ("measured", "measure"), ("measure", "id")):
            connection.execute(f"DELETE FROM {table} WHERE {column} = ?", (measure,))
    open_for_writing(rig.path).close()
    assert rig.rows() == rows
    assert rig.times(BY_ACTIVITY_MS) == {"device": rig.times(ACTIVE_MS)["device"]}


def test_a_file_of_an_earlier_version_is_brought_up_to_date(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.recorder.close()
    migrations = (*schema.MIGRATIONS, "ALTER TABLE device ADD COLUMN colour TEXT;\nUPDATE device SET colour = 'red'")
    monkeypatch.setattr(schema, "MIGRATIONS", migrations)
    with pytest.raises(SourceError, match="earlier version"):
        rig.rows()
    open_for_writing(rig.path, migrations).close()
    assert rig.query("SELECT DISTINCT colour FROM device") == [("red",)]
    assert rig.submits()["web-0"] == 5


def test_a_file_without_tables_is_none_of_an_earlier_version(rig: Rig) -> None:
    """As a full disk leaves it."""
    rig.path.parent.mkdir(exist_ok=True)
    rig.path.touch()
    with pytest.raises(SourceError, match="nothing could be stored") as caught:
        rig.rows()
    assert "journalctl -u kubenpud" in caught.value.remedy


def test_a_strange_name_of_a_file(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "50%41 #1?mode=memory&x é" / "usage.db")
    rig.call(WEB, 5)
    rig.step()
    assert rig.submits()["web-0"] == 5
    rig.recorder.close()


def test_it_is_for_root_alone(rig: Rig) -> None:
    rig.step()
    assert {path.stat().st_mode & 0o777 for path in rig.path.parent.iterdir()} == {0o600}
    assert rig.path.parent.stat().st_mode & 0o777 == 0o700


def test_no_place_for_it_is_said(tmp_path: Path) -> None:
    (tmp_path / "state").write_text("")
    with pytest.raises(SourceError, match="cannot use"):
        Rig(tmp_path / "state" / "usage.db").step()
    with pytest.raises(SourceError, match="there is no history"):
        Rig(tmp_path / "other.db").rows()


def test_a_question_that_takes_too_long_or_has_too_many_answers(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    from kubenpu.history import report

    for n in range(100):
        rig.call(("pod", "shop", f"web-{n}", "main", f"u{n}", ""), 1)
    rig.step()
    with pytest.raises(SourceError, match="more than 50 rows"):
        report.read_usage(rig.path, "pod", 0, 1e11, deadline_s=60, max_rows=50)
    monkeypatch.setattr(report, "_CHECK_EVERY", 1)
    with pytest.raises(SourceError, match="takes longer than 0 s") as caught:
        report.read_usage(rig.path, "pod", 0, 1e11, deadline_s=0)
    assert "--database" in caught.value.remedy
    with pytest.raises(SourceError, match="summed up by weather"):
        report.read_usage(rig.path, "weather", 0, 1e11, deadline_s=60)


def test_a_history_that_cannot_be_looked_at_is_an_error_with_its_remedy(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(SourceError, match="Not a directory") as caught:
        schema.open_for_reading(tmp_path / "file" / "usage.db")
    assert caught.value.remedy


@pytest.fixture
def shown() -> Iterator[Rig]:
    """In a directory that any user may look into; pytest's are for one."""
    with TemporaryDirectory(prefix="kubenpu-test-") as directory:
        Path(directory).chmod(0o755)
        rig = Rig(Path(directory) / "state" / "usage.db")
        rig.call(WEB, 5)
        rig.step()
        yield rig
        rig.recorder.close()


@contextmanager
def who_writes_nothing(directory: Path) -> Iterator[None]:
    """A user who may read all in this directory."""
    for path in directory.iterdir():
        path.chmod(0o444)
    directory.chmod(0o555)
    try:
        with not_as_root():
            yield
    finally:
        directory.chmod(0o755)


@contextmanager
def not_as_root() -> Iterator[None]:
    user = os.geteuid()
    os.seteuid(user or NOBODY)
    try:
        yield
    finally:
        os.seteuid(user)


def test_a_history_where_nothing_can_be_written_is_read(shown: Rig) -> None:
    """A copy on a read-only disk, say. SQLite would make its own files beside it."""
    shown.recorder.close()
    assert sorted(path.name for path in shown.path.parent.iterdir()) == ["usage.db", "usage.db-lock"]
    with who_writes_nothing(shown.path.parent):
        assert shown.submits()["web-0"] == 5


def test_a_log_where_nothing_can_be_written_is_not_left_out(shown: Rig) -> None:
    """All that was stored is in the log still; to read that, SQLite needs the third file, or to make it."""
    log = shown.path.with_name("usage.db-wal")
    assert log.stat().st_size
    with who_writes_nothing(shown.path.parent):
        assert shown.submits()["web-0"] == 5
    copied = shown.path.parents[1] / "copied"
    copied.mkdir()
    for path in (shown.path, log):
        shutil.copy(path, copied)
    with who_writes_nothing(copied), pytest.raises(SourceError, match="its log cannot be read") as caught:
        schema.open_for_reading(copied / "usage.db")
    assert "usage.db-wal" in caught.value.remedy


def test_a_history_that_this_user_may_not_read_is_said_to_be_so(shown: Rig) -> None:
    shown.path.parent.chmod(0o755)
    shown.path.chmod(0)
    with not_as_root(), pytest.raises(SourceError, match="Permission denied") as caught:
        schema.open_for_reading(shown.path)
    assert "as root" in caught.value.remedy


def test_what_is_no_file_is_no_history(tmp_path: Path) -> None:
    """SQLite would wait for who writes into a pipe."""
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path, tmp_path / "pipe"):
        with pytest.raises(SourceError, match="no regular file") as caught:
            schema.open_for_reading(path)
        assert caught.value.remedy == schema.READ_REMEDY


def test_another_database_is_no_earlier_history(tmp_path: Path) -> None:
    with closing(sqlite3.connect(tmp_path / "usage.db")) as connection:
        connection.execute("CREATE TABLE bookmarks (address TEXT)")
    with pytest.raises(CorruptError, match="its tables are others"):
        schema.open_for_reading(tmp_path / "usage.db")


def test_what_is_no_history_is_said_to_be_none(tmp_path: Path) -> None:
    (tmp_path / "usage.db").write_text("no database, but long enough to look like one\n" * 40)
    with pytest.raises(CorruptError) as caught:
        schema.open_for_reading(tmp_path / "usage.db")
    assert caught.value.remedy == schema.READ_REMEDY
