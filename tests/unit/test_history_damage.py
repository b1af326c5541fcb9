# SPDX-License-Identifier: Apache-2.0
"""A history that is damaged, foreign, gone, or written by two: counting goes on, and nothing is charged twice."""

from __future__ import annotations

import random
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

from kubenpu.cli import main as cli
from kubenpu.history.recorder import Recorder
from kubenpu.history.schema import PAGE_BYTES, CorruptError
from kubenpu.history.snapshot import Told
from kubenpu.model.errors import SourceError
from kubenpu.model.usage import DEVICE_NS, PRESENT_MS
from tests.fakes.history_rig import GPU, HOUR_MS, MINUTE_MS, SSH, WEB, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "state" / "usage.db")
    for _ in range(3):
        made.call(WEB, 10)
        made.step()
    yield made
    made.recorder.close()


def execute(path: Path, *statements: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        for statement in statements:
            connection.execute(statement)


def soil(statement: str) -> Callable[[Path], None]:
    """Values of types that SQLite would refuse, as rot makes them."""

    def damage(path: Path) -> None:
        with closing(sqlite3.connect(path, isolation_level=None)) as connection:
            tables = connection.execute("SELECT name, sql FROM sqlite_schema WHERE sql LIKE '% STRICT%'").fetchall()
            connection.execute("PRAGMA writable_schema = ON")
            for loose in (") WITHOUT ROWID", ")"):
                strict = loose.replace(")", ") STRICT,", 1) if loose != ")" else ") STRICT"
                connection.execute("UPDATE sqlite_schema SET sql = replace(sql, ?, ?)", (strict, loose))
            connection.execute("PRAGMA writable_schema = RESET")
            connection.execute(statement)
            connection.execute("PRAGMA writable_schema = ON")
            connection.executemany("UPDATE sqlite_schema SET sql = ?2 WHERE name = ?1", tables)

    return damage


def cut(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(10_000)


def rot(path: Path) -> None:
    chance, content = random.Random(1), bytearray(path.read_bytes())
    for _ in range(300):
        content[chance.randrange(PAGE_BYTES, len(content))] ^= 0xFF
    path.write_bytes(content)


def replace(path: Path) -> None:
    path.write_bytes(b"hello world" * 500)


def make_foreign(path: Path) -> None:
    path.unlink()
    execute(path, "CREATE TABLE interval (x)")


DAMAGE: dict[str, Callable[[Path], None]] = {
    "cut": cut,
    "no database": replace,
    "rot": rot,
    "foreign": make_foreign,
    "foreign, of our version": lambda path: execute(path, "DROP TABLE usage", "CREATE TABLE usage (x)"),
    "a table is missing": lambda path: execute(path, "DROP TABLE usage"),
    "a table too many": lambda path: execute(path, "CREATE TABLE more (x)"),
    "text among totals": soil("UPDATE last SET value = 'abc'"),
    "text among times": soil("UPDATE stored SET boot_end_ms = 'xyz'"),
    "text among intervals": soil("UPDATE interval SET end_ms = 'zzz'"),
    "a fraction": soil("UPDATE usage SET value = 1e300"),
    "a name that is none": soil("UPDATE workload SET namespace = x'ff00ff'"),
    "text that is no UTF-8": soil("UPDATE epoch SET name = CAST(x'ff00ff' AS TEXT)"),
    "a total below all numbers": lambda path: execute(path, f"UPDATE last SET value = {-(2**63)}"),
    "sums above all numbers": lambda path: execute(path, f"UPDATE usage SET value = {2**63 - 1}"),
}


@pytest.mark.parametrize("kind", [kind for kind in DAMAGE if kind != "sums above all numbers"])
def test_what_is_not_sound_is_set_aside(rig: Rig, kind: str) -> None:
    """It is said once; what happens from then on is in the new file, also after a restart."""
    rig.recorder.close()
    DAMAGE[kind](rig.path)
    rig.call(WEB, 10)
    with pytest.raises(CorruptError, match=r"usage\.db\.corrupt-2023\S+ now"):
        rig.step()
    for _ in range(2):
        rig.call(WEB, 1)
        rig.step()
        rig.kill()
    assert rig.submits() == {"device": 2, "unattributed": 0, "web-0": 2}
    assert len(list(rig.path.parent.glob("usage.db.corrupt-*"))) == 1


@pytest.mark.parametrize("kind", DAMAGE)
def test_a_report_of_what_is_not_sound_is_an_error(rig: Rig, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Or a report: what is not asked for may be damaged. What is seen at once to be no history is a wrong file."""
    rig.recorder.close()
    DAMAGE[kind](rig.path)
    done = cli.main(["report", "--database", str(rig.path), "--since", "@0", "--until", "@9999999999"])
    assert done in {0, 1, 2}
    captured = capsys.readouterr()
    assert bool(captured.out) == (done == 0)
    assert done == 0 or str(rig.path) in captured.err


def test_what_goes_bad_while_it_is_open_is_set_aside(rig: Rig) -> None:
    soil("UPDATE last SET value = 'abc'")(rig.path)
    with pytest.raises(CorruptError):
        rig.step()
    rig.step()


def test_sums_that_cannot_be_made_are_set_aside_when_minutes_become_quarters(rig: Rig) -> None:
    DAMAGE["sums above all numbers"](rig.path)
    with pytest.raises(CorruptError, match="overflow"):
        rig.step(72 * HOUR_MS)


@pytest.mark.parametrize("way", ["deleted", "not sound"])
def test_what_may_have_been_charged_is_not_charged_again(rig: Rig, way: str, caplog: pytest.LogCaptureFixture) -> None:
    """Neither calls nor device time nor the time that the device was there."""
    rig.told_generation, rig.told_devices = 7, {GPU: Told(5 * 10**9, 0, 0)}
    rig.step(10 * HOUR_MS)
    if way == "deleted":
        for path in rig.path.parent.iterdir():
            path.unlink()
        rig.step()
    else:
        rig.recorder.close()
        rig.path.write_bytes(b"x" * 9000)
        with pytest.raises(CorruptError):
            rig.step()
    assert rig.rows() == []
    assert "left out" in caplog.text
    rig.call(WEB, 3)
    rig.told_devices = {GPU: Told(6 * 10**9, 0, 0)}
    rig.step()
    assert rig.submits() == {"device": 3, "unattributed": 0, "web-0": 3}
    assert rig.times(PRESENT_MS) == {"device": MINUTE_MS}
    assert rig.times(DEVICE_NS)["device"] == 10**9


def test_device_time_that_is_told_later_is_not_charged_again_either(rig: Rig) -> None:
    """Who looks at clients was not there when the new file was begun."""
    rig.path.unlink()
    rig.step()
    rig.told_generation, rig.told_devices = 7, {GPU: Told(5 * 10**9, 0, 0)}
    rig.step()
    rig.told_devices = {GPU: Told(6 * 10**9, 0, 0)}
    rig.step()
    assert rig.times(DEVICE_NS)["device"] == 10**9


@pytest.mark.parametrize(("minutes", "charged"), [(1, 5), (2, 5), (3, 0)])
def test_a_first_history_has_what_was_counted_since_just_now(tmp_path: Path, minutes: int, charged: int) -> None:
    """It may be the first after an installation, or not."""
    rig = Rig(tmp_path / "usage.db")
    rig.call(WEB, 5)
    rig.step(minutes * MINUTE_MS)
    rig.call(WEB, 1)
    rig.step()
    assert rig.submits() == {"device": charged + 1, "unattributed": 0, "web-0": charged + 1}
    rig.recorder.close()


def test_new_counters_that_nobody_stored_are_charged_however_old(rig: Rig) -> None:
    rig.begin_anew("boot-2/7", 1000)
    rig.call(WEB, 5)
    rig.step(HOUR_MS)
    assert rig.submits()["web-0"] == 35


# ---- two that write ----


def test_another_kubenpud_that_writes_is_said_and_leaves_it_alone(rig: Rig) -> None:
    other = Recorder(rig.path, rig.bounds)
    rig.call(WEB, 1)
    rig.boot_ms += MINUTE_MS
    with pytest.raises(SourceError, match="another kubenpud writes") as caught:
        other.record(rig.snapshot())
    assert "history.file" in caught.value.remedy
    rig.step()
    rig.recorder.close()
    rig.call(WEB, 1)
    rig.boot_ms += MINUTE_MS
    other.record(rig.snapshot())
    other.close()
    assert rig.submits()["web-0"] == 32


def test_counters_that_were_seen_before_are_not_new(rig: Rig) -> None:
    """Two kubenpuds with other counters that write one file by turns."""
    mine = rig.epoch, rig.totals, rig.first_ns, rig.devices
    rig.begin_anew("boot-1/8", rig.boot_ms)
    rig.call(SSH, 1)
    rig.step()
    rig.epoch, rig.totals, rig.first_ns, rig.devices = mine
    rig.call(WEB, 7)
    rig.step()
    rig.call(WEB, 2)
    rig.step()
    assert rig.submits() == {"device": 33, "unattributed": 0, "web-0": 32, "ssh.service": 1}
