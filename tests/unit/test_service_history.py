# SPDX-License-Identifier: Apache-2.0
"""The history beside the daemon: when it is written, what is said when it cannot be, what it costs when it is off."""

from __future__ import annotations

import math
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from kubenpu.config.settings import Settings, parse_daemon_arguments, read_settings
from kubenpu.history import report
from kubenpu.history.schema import LOG_BYTES, open_for_reading
from kubenpu.history.snapshot import Names, read_snapshot
from kubenpu.history.upkeep import ROOM_FOR_LOG, Bounds
from kubenpu.model.allocation import Allocations
from kubenpu.model.errors import SourceError
from kubenpu.model.sample import HookStatus
from kubenpu.model.usage import ALLOCATED_MS, BY_ALLOCATION_MS, PRESENT_MS, SHARE_MS, UNWATCHED_MS, Part
from kubenpu.model.view import View
from kubenpu.service.history import RETRY_SECONDS, History
from kubenpu.service.node import Node
from tests.fakes.dbus_node import ALLOCATIONS, IGPU, NPU, VIEW, VISIBILITY, counts
from tests.fakes.history_rig import Rig


class FakeNode:
    """`shown` is its View, `notes` what it was told of the history."""

    def __init__(self, shown: View) -> None:
        self.shown = shown
        self.visibility = lambda vendor: VISIBILITY.get(vendor or "", {})
        self.notes: list[str] = []

    def view(self) -> View:
        return self.shown

    def note_source(self, source: str, reason: str, seconds: float) -> None:
        assert source == "history"
        assert seconds >= 0
        self.notes.append(reason)


FIRST = range(10)
COUNTED = replace(VIEW, epoch="boot/1", taken_ns=10**11)


def more_calls(view: View) -> View:
    usage = view.device_usage[0]
    return replace(
        view,
        device_usage=(replace(usage, settled=counts(*(n + 1 for n in usage.settled.calls))), *view.device_usage[1:]),
    )


def later(view: View, seconds: float) -> View:
    return replace(view, taken_ns=view.taken_ns + int(seconds * 1e9))


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    file = tmp_path / "kubenpu.toml"
    file.write_text(f'history.file = "{tmp_path}/state/usage.db"\n')
    return read_settings(parse_daemon_arguments(["--config.file", str(file)]))


def made(settings: Settings, view: View = COUNTED) -> tuple[History, FakeNode]:
    node = FakeNode(view)
    return History(cast(Node, node), settings), node


def intervals(settings: Settings) -> int:
    connection = sqlite3.connect(settings.history_file)
    try:
        return int(connection.execute("SELECT COUNT(*) FROM interval").fetchone()[0])
    finally:
        connection.close()


def test_it_stores_once_a_minute_and_at_the_end(settings: Settings) -> None:
    history, node = made(settings)
    assert history.step() == 60.0
    assert intervals(settings) == 1
    node.shown = later(COUNTED, 10)
    assert history.step() == 60.0
    assert intervals(settings) == 1  # a restart, say
    history.close()
    assert intervals(settings) == 2
    assert node.notes == ["", "", ""]


def test_its_answer_is_what_was_counted(settings: Settings) -> None:
    history, _ = made(settings, replace(COUNTED, pod_labels={"u1": {"team": "blue"}}))
    history.step()
    rows = {
        (row.part, row.label): row.amounts
        for row in history.usage("label:team", 0, 1e10, FIRST)[0]
        if row.device == IGPU
    }
    assert rows[Part.WORKLOAD, "blue"]["calls.submit"] == 100
    assert rows[Part.WORKLOAD, "blue"]["wait_ns"] == 1_500_000_000
    history.close()


def test_who_holds_a_device_is_stored_with_its_labels() -> None:
    """As far as it is known which device that is, and that device is counted."""
    web, unknown = ALLOCATIONS.all
    held = (web, unknown, web._replace(pod="idle-0", pod_uid="u8"), web._replace(pod="other-0", device=NPU))
    labels = {"u1": {"team": "blue"}, "u8": {"team": "red"}}
    view = replace(COUNTED, allocations=Allocations(held, {}), pod_labels=labels)
    silent = read_snapshot(replace(view, allocations=None), 0, lambda _vendor: {})
    assert silent is not None
    assert silent.held is None
    snapshot = read_snapshot(view, 0, lambda _vendor: {})
    assert snapshot is not None
    web_0, idle_0 = (("pod", "shop", pod, "main", uid, "") for pod, uid in (("web-0", "u1"), ("idle-0", "u8")))
    assert snapshot.held == frozenset({(web_0, IGPU), (idle_0, IGPU)})
    assert snapshot.labels == {web_0: {"team": "blue"}, idle_0: {"team": "red"}}


def test_a_node_that_stands_for_several_devices_has_calls_and_no_time(settings: Settings) -> None:
    """Else its GPU would be charged for once by itself, and again by each of its driver's other nodes."""
    given = ALLOCATIONS.all[0]
    times = {}
    for auxiliary in (False, True):
        device = replace(VIEW.device_usage[0], settled=counts(100, 0, 0, 0, 0, 0, 0), auxiliary=auxiliary)
        view = replace(COUNTED, device_usage=(device,), allocations=Allocations((given,), {}))
        history, node = made(replace(settings, history_file=settings.history_file.with_name(str(auxiliary))), view)
        history.step()
        node.shown = later(view, 60)
        history.step()
        rows = history.usage("pod", 0, 1e10, FIRST)[0]
        (whole,) = (row for row in rows if row.part is Part.DEVICE)
        others = [row for row in rows if row.part is not Part.DEVICE]
        assert sum(row.amounts["calls.submit"] for row in others) == whole.amounts["calls.submit"] > 0
        times[auxiliary] = {name for row in rows for name, ms in row.amounts.items() if name.endswith("_ms") and ms}
        history.close()
    assert times[False] >= {PRESENT_MS, ALLOCATED_MS, SHARE_MS, BY_ALLOCATION_MS}
    assert times[True] == set()


@pytest.mark.parametrize(("mechanism", "present"), [("lsm", True), ("off", False)])
def test_what_a_hook_does_not_see_is_not_known(settings: Settings, mechanism: str, present: bool) -> None:
    """Errors and waits of a device whose calls are seen at their beginning only; its time while that hook is off."""
    device = replace(VIEW.device_usage[0], hooks=("file_ioctl",), settled=counts(0, 0, 0, 0, 0, 0, 9))
    hooks = (*VIEW.hooks, HookStatus("file_ioctl", mechanism, "", 5))
    history, _ = made(settings, replace(COUNTED, device_usage=(device,), usage=(), hooks=hooks))
    history.step()
    (whole,) = (row for row in history.usage("pod", 0, 1e10, FIRST)[0] if row.part is Part.DEVICE)
    assert ("calls.other" in whole.amounts, "errors.other" in whole.amounts) == (True, False)
    assert (whole.amounts.get(PRESENT_MS, 0) > 0) == present
    history.close()


def test_without_counts_nothing_is_stored(settings: Settings) -> None:
    history, node = made(settings, replace(COUNTED, epoch=""))
    history.step()
    history.close()
    assert not settings.history_file.exists()
    assert node.notes == ["", ""]


def test_what_is_in_the_way_is_a_source_that_is_down(settings: Settings) -> None:
    history, node = made(settings)
    settings.history_file.parent.write_text("")
    assert history.step() == RETRY_SECONDS
    assert "cannot use" in node.notes[-1]
    settings.history_file.parent.unlink()
    history.step()
    assert node.notes[-1] == ""
    assert intervals(settings) == 1
    history.close()


def test_one_write_that_failed_makes_no_time_free(settings: Settings) -> None:
    """Another process holds the file for some seconds; steps take longer than a minute."""
    history, node = made(settings)
    history.step()
    with closing(sqlite3.connect(settings.history_file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        node.shown = later(COUNTED, 60.1)
        assert history.step() == RETRY_SECONDS
        assert "locked" in node.notes[-1]
    node.shown = later(more_calls(COUNTED), 60.1 + 2 * RETRY_SECONDS + 60.1)
    assert history.step() == 60.0
    (whole,) = (r for r in history.usage("pod", 0, 1e10, FIRST)[0] if (r.part, r.device) == (Part.DEVICE, IGPU))
    assert UNWATCHED_MS not in whole.amounts
    history.close()


def test_a_file_that_is_set_aside_is_said_until_the_next_minute(settings: Settings) -> None:
    history, node = made(settings)
    history.step()
    history.close()
    settings.history_file.write_bytes(b"x" * 9000)
    node.shown = later(COUNTED, 60)
    assert history.step() == 60.0
    assert "corrupt-" in node.notes[-1]
    history.close()


def test_a_report_that_finds_damage_has_the_file_looked_through(settings: Settings) -> None:
    """It is in pages that nobody needs for storing."""
    history, node = made(settings)
    history.step()
    connection = sqlite3.connect(settings.history_file)
    connection.execute("PRAGMA writable_schema = ON")
    connection.execute("UPDATE sqlite_schema SET sql = replace(sql, 'STRICT, ', '')")
    connection.commit()
    connection.close()
    with pytest.raises(SourceError, match="tables are others"):
        history.usage("pod", 0, 1e10, FIRST)
    node.shown = later(COUNTED, 60)
    history.step()
    assert "corrupt-" in node.notes[-1]
    history.close()


MANY: list[Names] = [("pod", "shop", f"web-{n}", "main", f"u{n}", "") for n in range(250)]


def busy_minute(rig: Rig) -> None:
    for names in MANY:
        rig.call_all(names, 1)
    rig.step()


def log_bytes(settings: Settings) -> int:
    return settings.history_file.with_name("usage.db-wal").stat().st_size


def test_who_always_reads_makes_the_history_no_larger(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    """A report is read during every write, so SQLite never finds a moment to begin its log anew."""
    rig = Rig(settings.history_file, bounds=Bounds(90, 8))
    history, _ = made(settings)
    busy_minute(rig)
    sum_up = report._sum_up

    def sum_up_and_write(*args: Any) -> Any:
        found = sum_up(*args)
        busy_minute(rig)
        return found

    monkeypatch.setattr(report, "_sum_up", sum_up_and_write)
    for _ in range(120):
        history.usage("namespace", rig.wall_ms / 1000 - 900, 1e10, FIRST)
        assert log_bytes(settings) < ROOM_FOR_LOG
        assert log_bytes(settings) + settings.history_file.stat().st_size < 8 << 20
    assert rig.query("SELECT MIN(id) > 1 FROM interval") == [(1,)]  # so much that the oldest went
    rig.recorder.close()


def test_a_log_that_somebody_else_needs_is_cut_later(settings: Settings) -> None:
    """Who reads the file by --database is not known here: reports are answered all the same."""
    rig = Rig(settings.history_file)
    history, _ = made(settings)
    busy_minute(rig)
    with closing(open_for_reading(settings.history_file)) as other:
        other.execute("BEGIN")
        assert other.execute("SELECT COUNT(*) FROM interval").fetchone() == (1,)
        while log_bytes(settings) <= LOG_BYTES:
            busy_minute(rig)
        assert history.usage("pod", 0, 1e10, FIRST)[1] == len(MANY)
        assert log_bytes(settings) > LOG_BYTES
    assert history.usage("pod", 0, 1e10, FIRST)[1] == len(MANY)
    assert log_bytes(settings) == 0
    busy_minute(rig)
    rig.recorder.close()


def test_a_daemon_that_never_began_stores_nothing(settings: Settings) -> None:
    history, node = made(settings)
    history.close()
    assert not settings.history_file.exists()
    assert node.notes == []


def test_it_can_be_off(settings: Settings) -> None:
    history, node = made(replace(settings, history_enabled=False))
    assert history.step() == math.inf
    history.apply(replace(settings, history_enabled=False, history_max_mib=8))
    history.close()
    assert (node.notes, settings.history_file.exists()) == ([], False)
    with pytest.raises(SourceError, match=r"history\.enabled is false"):
        history.usage("pod", 0, 1, FIRST)


def test_its_bounds_follow_a_reload(settings: Settings) -> None:
    history, _ = made(settings)
    history.apply(replace(settings, history_retention_days=1, history_max_mib=8))
    assert history._recorder is not None
    assert (history._recorder.bounds.retention_days, history._recorder.bounds.max_mib) == (1, 8)
