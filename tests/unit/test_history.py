# SPDX-License-Identifier: Apache-2.0
"""The history: what is charged to whom over restarts, retirement, gaps and clocks that are set."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.history import growth
from kubenpu.history.snapshot import Names
from kubenpu.model.usage import (
    ACTIVE_MS,
    ALLOCATED_MS,
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    PRESENT_MS,
    SHARE_MS,
    UNUSED_MS,
    UNWATCHED_MS,
)
from tests.fakes.history_rig import (
    BEGIN_MS,
    DAY_MS,
    GPU,
    HOUR_MS,
    JOB,
    MINUTE_MS,
    NPU,
    QUARTER_MS,
    SSH,
    WEB,
    Rig,
    plus,
    some,
)


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "state" / "usage.db")
    yield made
    made.recorder.close()


# ---- what can be known ----


# ---- who is charged ----


def test_growth_is_stored_and_not_totals(rig: Rig) -> None:
    rig.wall_ms = BEGIN_MS - MINUTE_MS
    rig.call(WEB, 5)
    rig.step()
    begin = rig.wall_ms
    rig.call(WEB, 2)
    rig.call(SSH, 1)
    rig.call(None, 3)
    rig.step()
    assert rig.submits() == {"device": 11, "unattributed": 3, "web-0": 7, "ssh.service": 1}
    assert rig.submits(since_ms=begin) == {"device": 6, "unattributed": 3, "web-0": 2, "ssh.service": 1}


def test_another_recorder_goes_on_where_the_last_one_was_killed(rig: Rig) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.kill()
    rig.call(WEB, 1)
    rig.step()
    assert rig.submits() == {"device": 6, "unattributed": 0, "web-0": 6}


def test_a_retired_workload_keeps_what_it_was_charged(rig: Rig) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.retire(WEB)
    rig.step()
    rig.call(WEB, 2)
    rig.step()
    assert rig.submits() == {"device": 7, "unattributed": 0, "web-0": 7}


def test_retired_and_back_between_two_steps(rig: Rig) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.retire(WEB)
    rig.boot_ms += 1
    rig.call(WEB, 8)
    rig.step()
    assert rig.submits() == {"device": 13, "unattributed": 0, "web-0": 13}


def leave(rig: Rig, names: Names, calls: int, departed: bool) -> None:
    """The oldest of two cells of a workload leaves it: into the departed total, or to those without a name."""
    rig.totals[names, GPU] = plus(rig.totals[names, GPU], some(-calls))
    rig.first_ns[names, GPU] += 1
    if departed:
        rig.departed[GPU] = plus(rig.departed[GPU], some(calls))


def test_retirement_that_was_cut_short_by_a_kill(rig: Rig) -> None:
    """One of two cells is in the departed total, and the workload calls again."""
    rig.call(WEB, 15)
    rig.step()
    leave(rig, WEB, 10, departed=True)
    rig.call(WEB, 1)
    rig.step()
    rig.retire(WEB)
    rig.step()
    assert rig.submits() == {"device": 16, "unattributed": 0, "web-0": 16}


@pytest.mark.parametrize("calls", [15, 11])
def test_a_name_that_is_lost_in_part(rig: Rig, calls: int) -> None:
    """Of two cgroups of a unit one has its name again; another unit's retirement does not hide that."""
    rig.call(WEB, calls)
    rig.call(JOB, 12)
    rig.step()
    leave(rig, JOB, 12, departed=True)
    rig.call(JOB, 3)
    leave(rig, WEB, 10, departed=False)
    rig.step()
    assert rig.submits() == {"device": calls + 15, "unattributed": 10, "web-0": calls - 10, "train-0": 15}
    leave(rig, WEB, -10, departed=False)
    rig.step()
    assert rig.submits() == {"device": calls + 15, "unattributed": 0, "web-0": calls, "train-0": 15}


def test_what_was_retired_before_it_was_stored_is_unattributed(rig: Rig) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.call(WEB, 4)
    rig.retire(WEB)
    rig.step()
    assert rig.submits() == {"device": 9, "unattributed": 4, "web-0": 5}


def lose(rig: Rig, *names: Names) -> None:
    """kubenpud was started without its names.json, and the runtime does not answer."""
    for each in names:
        del rig.totals[each, GPU], rig.first_ns[each, GPU]


@pytest.mark.parametrize("hours", [0, 23, 26, 24 * 30])
def test_a_lost_name_that_comes_back_is_not_charged_again(rig: Rig, hours: int) -> None:
    rig.call(WEB, 5)
    rig.step()
    kept = dict(rig.totals), dict(rig.first_ns)
    lose(rig, WEB)
    rig.step()
    rig.step(hours * HOUR_MS + 1)
    rig.totals, rig.first_ns = kept
    rig.call(WEB, 1)
    rig.step()
    assert rig.submits() == {"device": 6, "unattributed": 0, "web-0": 6}


def test_what_departed_under_no_name_is_not_taken_off_who_comes_back(rig: Rig) -> None:
    """A unit's dead cgroups lose their name and are folded; then it calls again. It never has less than before."""
    rig.call(WEB, 5)
    rig.call(SSH, 7)
    rig.step()
    lose(rig, SSH)
    rig.step()
    rig.departed[GPU] = some(7)
    rig.step(HOUR_MS)
    found = []
    for _ in range(3):
        rig.call(SSH, 4)
        rig.step()
        found.append(rig.submits()["ssh.service"])
    assert found == [7, 11, 15]  # at first nobody knows that the 4 are none of the 7
    assert rig.submits() == {"device": 24, "unattributed": 4, "web-0": 5, "ssh.service": 15}


def test_of_lost_names_the_longest_lost_are_forgotten(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(growth, "MOST_GONE", 2)
    for names in (WEB, JOB, SSH):
        rig.call(names, 5)
    rig.step()
    kept = dict(rig.totals), dict(rig.first_ns)
    for names in (JOB, WEB, SSH):
        lose(rig, names)
        rig.step()
    assert rig.query("SELECT COUNT(*) FROM source") == [(2,)]
    rig.totals, rig.first_ns = kept
    rig.step()
    assert rig.submits() == {"device": 15, "unattributed": -5, "web-0": 5, "train-0": 10, "ssh.service": 5}


@pytest.mark.parametrize("epoch", ["boot-1/8", "boot-2/7"])
def test_new_counters_are_counted_from_nothing(rig: Rig, epoch: str) -> None:
    rig.call(WEB, 5)
    rig.step()
    rig.begin_anew(epoch, rig.boot_ms + 1000 if epoch.startswith("boot-1") else 1000)
    rig.call(WEB, 2)
    rig.call(JOB, 1)
    rig.step()
    assert rig.submits() == {"device": 8, "unattributed": 0, "web-0": 7, "train-0": 1}


# ---- times ----


def test_a_minute_is_divided_among_those_who_called(rig: Rig) -> None:
    rig.step()
    for workloads in ((WEB, JOB, SSH), (WEB,), ()):
        for names in workloads:
            rig.call(names, 1)
        rig.step(MINUTE_MS + 1)
    rig.call(None, 1, device=NPU)
    rig.step()
    third = (MINUTE_MS + 1) / 3
    assert rig.times(SHARE_MS) == {
        "web-0": int(third) + MINUTE_MS + 1,
        "train-0": int(third),
        "ssh.service": MINUTE_MS + 1 - 2 * int(third),
    }
    assert rig.times(ACTIVE_MS)["web-0"] == rig.times(ACTIVE_MS)["device"] == 2 * (MINUTE_MS + 1)
    assert rig.times(ACTIVE_MS, NPU) == {"device": MINUTE_MS, "unattributed": MINUTE_MS}
    assert rig.times(PRESENT_MS) == {"device": rig.boot_ms - 10 * MINUTE_MS}


def test_a_device_that_was_given_is_divided_among_those_it_was_given_to(rig: Rig) -> None:
    """Used or not: WEB holds it all the time and calls once, JOB for one minute; SSH uses it and was not given it."""
    rig.step()
    for held, calls in (({WEB}, (WEB, SSH)), ({WEB, JOB}, (SSH,)), ({WEB}, ()), (set(), (SSH,)), (set(), ())):
        rig.held = frozenset((names, GPU) for names in held)
        for names in calls:
            rig.call(names, 1)
        rig.step()
    minutes = {
        measure: {name: ms / MINUTE_MS for name, ms in rig.times(measure).items()}
        for measure in (SHARE_MS, ALLOCATED_MS, UNUSED_MS, BY_ALLOCATION_MS, BY_ACTIVITY_MS, ACTIVE_MS)
    }
    assert minutes == {
        SHARE_MS: {"web-0": 2.5, "train-0": 0.5, "ssh.service": 1},
        ALLOCATED_MS: {"device": 3, "web-0": 3, "train-0": 1},
        UNUSED_MS: {"device": 1, "web-0": 2, "train-0": 1},
        BY_ALLOCATION_MS: {"device": 3},
        BY_ACTIVITY_MS: {"device": 1},
        ACTIVE_MS: {"device": 3, "web-0": 1, "ssh.service": 3},
    }
    assert rig.times(ALLOCATED_MS, NPU) == {}
    (other,) = (row for row in rig.rows() if row.part.value == "device" and row.device == NPU)
    assert ALLOCATED_MS not in other.amounts  # nobody has said that it was given to none


def test_of_a_long_interval_nobody_knows_who_held_the_device(rig: Rig) -> None:
    rig.step()
    rig.held = frozenset({(WEB, GPU)})
    rig.step(HOUR_MS)
    assert rig.times(ALLOCATED_MS) == rig.times(SHARE_MS) == {}
    assert rig.times(UNWATCHED_MS) == {"device": HOUR_MS}  # and so it is not idle
    assert rig.times(UNWATCHED_MS, NPU) == {}


def test_an_hour_without_kubenpud_is_one_interval_that_nobody_watched(rig: Rig) -> None:
    rig.step()
    rig.call(WEB, 60)
    rig.step(HOUR_MS)
    assert rig.query("SELECT end_ms - start_ms FROM interval ORDER BY id DESC LIMIT 1") == [(HOUR_MS,)]
    assert rig.submits()["web-0"] == 60
    assert (rig.times(ACTIVE_MS), rig.times(SHARE_MS)) == ({}, {})
    assert rig.times(UNWATCHED_MS) == {"device": HOUR_MS}
    assert rig.times(UNWATCHED_MS, NPU) == {}  # nothing happened there, so it was idle


def test_counting_that_began_late_is_not_present_before(rig: Rig) -> None:
    rig.counting_ms = rig.boot_ms + 20_000
    rig.step()
    assert rig.times(PRESENT_MS) == {"device": 40_000}
    rig.counting_ms = None
    rig.step()
    rig.counting_ms = rig.boot_ms + 20_000
    rig.step()
    assert rig.times(PRESENT_MS) == {"device": 80_000}


def test_a_device_that_was_pulled_out_is_present_as_long_as_it_worked(rig: Rig) -> None:
    rig.step()
    rig.call(WEB, 1, device=NPU)
    rig.present = frozenset({GPU})
    rig.step()
    rig.step()
    assert rig.times(PRESENT_MS, NPU) == {"device": 2 * MINUTE_MS}


@pytest.mark.parametrize("jump_ms", [-3 * DAY_MS, 3 * DAY_MS])
def test_a_clock_that_is_set_changes_no_sum_and_no_duration(rig: Rig, jump_ms: int) -> None:
    for jump in (0, jump_ms, 0, -jump_ms, 0):
        rig.call(WEB, 1)
        rig.call(None, 1)
        rig.step(jump_ms=jump)
    assert rig.submits() == {"device": 10, "unattributed": 5, "web-0": 5}
    assert rig.times(PRESENT_MS) == {"device": 5 * MINUTE_MS}
    assert rig.times(ACTIVE_MS)["web-0"] == 5 * MINUTE_MS


def test_steps_that_follow_too_soon_are_left_out_but_for_new_counters(rig: Rig) -> None:
    rig.step()
    for epoch, stored in (("boot-1/7", 1), ("boot-1/8", 2)):
        rig.epoch = epoch
        rig.boot_ms += 5000
        rig.recorder.record(rig.snapshot(), least_s=30)
        assert rig.query("SELECT COUNT(*) FROM interval") == [(stored,)]


# ---- rows ----


def test_only_what_changed_is_written(rig: Rig) -> None:
    for names in (WEB, JOB, SSH):
        rig.call(names, 5, errors=1, wait_ns=7)
    rig.step()
    rig.call(WEB, 1)
    rig.step()
    stored = "SELECT name, value FROM usage JOIN measure ON measure.id = measure WHERE interval = 2 ORDER BY 1"
    times = [(ACTIVE_MS, MINUTE_MS)] * 2 + [("calls.submit", 1)] * 2 + [(PRESENT_MS, MINUTE_MS)] * 2
    assert rig.query(stored) == sorted([*times, (SHARE_MS, MINUTE_MS), (BY_ACTIVITY_MS, MINUTE_MS)])


def test_labels_are_kept_with_the_pod_as_they_were_first(rig: Rig) -> None:
    rig.labels[WEB] = {"team": "blue"}
    for names in (WEB, JOB, SSH):
        rig.call(names, 5)
    rig.step()
    rig.labels = {}
    rig.call(WEB, 1)
    rig.step()
    found = {
        row.label: row.amounts["calls.submit"] for row in rig.rows("label:team") if row.device == GPU and row.label
    }
    assert found == {"blue": 6}
    rig.labels[WEB] = {"team": "red", "tier": "gold"}
    rig.step()
    assert {row.label for row in rig.rows("label:team")} == {"", "blue"}
    assert {row.label for row in rig.rows("label:tier")} == {"", "gold"}


def test_a_pod_that_is_labelled_anew_before_a_reboot_does_not_change_the_past(rig: Rig) -> None:
    rig.labels = {WEB: {"team": "blue"}}
    rig.call(WEB, 5)
    rig.step()
    before = rig.rows("label:team", until_ms=BEGIN_MS + QUARTER_MS)
    rig.begin_anew("boot-2/1", MINUTE_MS)
    rig.labels = {WEB: {"team": "red"}}
    rig.call(WEB, 5)
    rig.step(HOUR_MS)
    assert rig.rows("label:team", until_ms=BEGIN_MS + QUARTER_MS) == before
    assert {row.label for row in rig.rows("label:team")} == {"", "blue"}


@pytest.mark.parametrize(
    ("by", "names"),
    [
        ("namespace", [("",), ("ml",), ("shop",)]),
        ("pod", [("", "", "ssh.service"), ("ml", "train-0", ""), ("shop", "web-0", "")]),
        ("unit", [("",), ("ssh.service",)]),
        ("device", [()]),
    ],
)
def test_groups(rig: Rig, by: str, names: list[tuple[str, ...]]) -> None:
    for workload in (WEB, JOB, SSH):
        rig.call(workload, 5)
    rig.step()
    columns = {"namespace": ["namespace"], "pod": ["namespace", "pod", "unit"], "unit": ["unit"], "device": []}[by]
    rows = [row for row in rig.rows(by) if row.device == GPU and row.part.value == "workload"]
    assert [tuple(getattr(row, column) for column in columns) for row in rows] == names
    assert sum(row.amounts["calls.submit"] for row in rows) == 15


def test_what_is_not_known_is_missing_and_not_0(rig: Rig) -> None:
    rig.call(WEB, 0, errors=1, device=NPU)
    rig.step()
    whole = {row.device: row.amounts for row in rig.rows() if row.part.value == "device"}
    assert whole[GPU]["calls.submit"] == 0
    assert "calls.submit" not in whole[NPU]


def test_hostile_names_stay_names(rig: Rig) -> None:
    name = "x'; DROP TABLE usage; --\0\n\u202e%s"
    hostile = ("pod", name, name, name, name, "")
    rig.labels[hostile] = {name: name}
    rig.call(hostile, 1)
    rig.step()
    (row,) = (row for row in rig.rows(f"label:{name}") if row.label)
    assert (row.label, row.amounts["calls.submit"]) == (name, 1)
    assert name in [row.pod for row in rig.rows("pod")]
