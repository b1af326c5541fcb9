# SPDX-License-Identifier: Apache-2.0
"""Device time and memory in the history: each nanosecond once, whoever restarts, and lines that add up."""

from __future__ import annotations

import sqlite3
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.history.growth import WATCHED_MS, Interval, plan_times
from kubenpu.history.schema import DEVICE, MIGRATIONS, open_for_writing
from kubenpu.history.snapshot import Told, read_snapshot
from kubenpu.model.clients import COUNT_LIMIT
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.usage import (
    BY_ACTIVITY_MS,
    BY_ALLOCATION_MS,
    BY_DEVICE_TIME_MS,
    DEVICE_NS,
    MEMORY_KIB_S,
    RULES,
    SHARE_MS,
    UNWATCHED_MS,
)
from kubenpu.model.view import ClientTotals, ClientUsage
from tests.fakes.dbus_node import HOST, IGPU, LOST, NPU, POD, VIEW
from tests.fakes.history_rig import BEGIN_MS, DAY_MS, GPU, HOUR_MS, JOB, MINUTE_MS, QUARTER_MS, SSH, WEB, Rig

S = 1_000_000_000
GIB = 1 << 30


@pytest.fixture
def rig(tmp_path: Path) -> Rig:
    made = Rig(tmp_path / "usage.db", told_generation=7)
    made.told_devices[GPU] = Told(0, 0, 0)
    return made


def tell(
    rig: Rig, web: int | None, job: int | None = None, *, nobody: int = 0, web_first: int = 1, departed: int = 0
) -> None:
    """Seconds of each so far; None: it has no series (any more). Of `nobody` are the `departed`, whose series ended."""
    rig.told = {}
    if web is not None:
        rig.told[WEB, GPU] = Told(web * S, GIB, web_first)
    if job is not None:
        rig.told[JOB, GPU] = Told(job * S, 0, 2)
    total = (web or 0) + (job or 0) + nobody
    rig.told_devices[GPU] = Told(total * S, 3 * GIB, 0)
    rig.told_departed[GPU] = departed * S


def seconds(rig: Rig) -> dict[str, float]:
    return {name: ns / S for name, ns in rig.times(DEVICE_NS).items()}


def test_growth_is_stored_once(rig: Rig) -> None:
    tell(rig, 10, 5)
    rig.step()
    tell(rig, 12, 5)
    rig.step()
    rig.step()
    assert seconds(rig) == {"device": 17, "web-0": 12, "train-0": 5}


def minutes(rig: Rig, *measures: str) -> dict[str, dict[str, float]]:
    return {each: {name: ms / MINUTE_MS for name, ms in rig.times(each).items()} for each in measures}


def test_a_device_is_divided_by_the_time_it_worked_for_each(rig: Rig) -> None:
    """As long as it worked; the rest of the minute is whose it would have been without."""
    rig.step()
    rig.held = frozenset({(SSH, GPU)})
    tell(rig, 10, 20, nobody=10)
    rig.step()
    rig.held = frozenset()
    tell(rig, 40, 20, nobody=10)
    rig.call(JOB, 1)
    rig.step()
    tell(rig, 70, 20, nobody=10)
    rig.step()
    assert minutes(rig, SHARE_MS, BY_DEVICE_TIME_MS, BY_ALLOCATION_MS, BY_ACTIVITY_MS) == {
        SHARE_MS: {"web-0": 7 / 6, "train-0": 5 / 6, "unattributed": 1 / 6, "ssh.service": 1 / 3},
        BY_DEVICE_TIME_MS: {"device": 5 / 3},
        BY_ALLOCATION_MS: {"device": 1 / 3},
        BY_ACTIVITY_MS: {"device": 1 / 2},
    }


def test_who_pokes_a_device_does_not_pay_for_who_holds_it(rig: Rig) -> None:
    rig.step()
    rig.held = frozenset({(WEB, GPU)})
    for minute in range(1, 11):
        rig.told = {(SSH, GPU): Told(minute * S // 1000, 0, 1)}
        rig.told_devices[GPU] = Told(minute * S // 1000, 0, 0)
        rig.call(SSH, 1)
        rig.step()
    assert rig.times(SHARE_MS) == {"ssh.service": 10, "web-0": 10 * MINUTE_MS - 10}


@given(
    st.dictionaries(st.integers(1, 6), st.integers(0, 10**11)),
    st.sets(st.integers(2, 6)),
    st.sets(st.integers(1, 6)),
    st.integers(0, WATCHED_MS),
)
def test_parts_of_an_interval_add_up(spent: dict[int, int], held: set[int], users: set[int], length: int) -> None:
    calls = {(workload, 0): 1 for workload in users}
    worked = {(workload, 0): ns for workload, ns in spent.items() if ns} | {(DEVICE, 0): sum(spent.values())}
    interval = Interval(0, length, length, length)
    times = list(plan_times(calls, interval, {0: length}, {0}, holders={0: held}, worked=worked))
    assert len({(key, measure) for key, measure, _ in times}) == len(times)
    rules = [ms for _, measure, ms in times if measure in RULES]
    assert sum(ms for _, measure, ms in times if measure == SHARE_MS) == sum(rules) <= length
    assert all(ms > 0 for ms in rules)
    if held or users:
        assert sum(rules) == length
    by_time = sum(ms for _, measure, ms in times if measure == BY_DEVICE_TIME_MS)
    assert by_time == min(length, sum(spent.values()) // 10**6)


def test_engines_side_by_side_do_not_make_a_minute_longer(rig: Rig) -> None:
    rig.step()
    rig.held = frozenset({(SSH, GPU)})
    tell(rig, 80, 40)
    rig.step()
    assert minutes(rig, SHARE_MS, BY_DEVICE_TIME_MS) == {
        SHARE_MS: {"web-0": 2 / 3, "train-0": 1 / 3},
        BY_DEVICE_TIME_MS: {"device": 1},
    }


def test_time_that_is_not_told_of_all_work_divides_nothing(rig: Rig) -> None:
    """Who computes past the driver's account would pay nothing, and the holder's share be another one's."""
    rig.timed = frozenset()
    rig.step()
    rig.held = frozenset({(SSH, GPU)})
    tell(rig, 1)
    rig.step()
    assert rig.times(SHARE_MS) == {"ssh.service": MINUTE_MS}
    assert seconds(rig) == {"device": 1, "web-0": 1}


def test_of_a_long_interval_nobody_knows_when_the_device_worked(rig: Rig) -> None:
    rig.step()
    tell(rig, 1)
    rig.step(HOUR_MS)
    assert rig.times(SHARE_MS) == {}
    assert rig.times(UNWATCHED_MS) == {"device": HOUR_MS}


def test_what_has_no_name_is_the_rest(rig: Rig) -> None:
    tell(rig, 10, None, nobody=30)
    rig.step()
    assert seconds(rig) == {"device": 40, "web-0": 10, "unattributed": 30}


def test_a_series_that_ended_stays_charged_and_the_next_one_is_new(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    tell(rig, None, nobody=10, departed=10)
    rig.step()
    tell(rig, 4, nobody=10, departed=10, web_first=9)
    rig.step()
    assert seconds(rig) == {"device": 14, "web-0": 14}


def test_a_series_whose_older_part_ended_stays_charged(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    tell(rig, 5, nobody=6, departed=6, web_first=9)
    rig.step()
    assert seconds(rig) == {"device": 11, "web-0": 11}


def test_a_name_that_was_lost_is_not_charged_again(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    tell(rig, None, nobody=12)
    rig.step()
    tell(rig, 15)
    rig.step()
    assert seconds(rig) == {"device": 15, "web-0": 15}


@pytest.mark.parametrize("web_first", [1, 9], ids=["its newer part", "its older part"])
def test_a_name_that_was_lost_in_part_is_not_charged_again(rig: Rig, web_first: int) -> None:
    tell(rig, 10)
    rig.step()
    tell(rig, 4, nobody=7, web_first=web_first)
    rig.step()
    tell(rig, 15)
    rig.step()
    assert seconds(rig) == {"device": 15, "web-0": 15}


def test_a_name_that_was_lost_for_days_is_not_charged_again(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    tell(rig, None, nobody=12)
    rig.step()
    rig.step(5 * DAY_MS)
    tell(rig, 15)
    rig.step()
    assert seconds(rig) == {"device": 15, "web-0": 15}


def test_a_new_boot_begins_at_nothing(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    rig.begin_anew("boot-2/1", MINUTE_MS)
    rig.told_generation = 8
    tell(rig, 3)
    rig.step()
    assert seconds(rig) == {"device": 13, "web-0": 13}


def test_totals_that_began_anew_in_a_boot_are_a_new_base(rig: Rig) -> None:
    """A living client brings again what was stored of it: what is new of it nobody knows."""
    tell(rig, 10)
    rig.step()
    rig.told_generation = 8
    tell(rig, 11)
    rig.step()
    tell(rig, 13)
    rig.step()
    assert seconds(rig) == {"device": 12, "web-0": 12}


def test_new_counters_of_calls_do_not_matter(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    rig.epoch = "boot-1/8"
    tell(rig, 12)
    rig.step()
    assert seconds(rig) == {"device": 12, "web-0": 12}


def test_while_nobody_looks_nothing_is_stored_and_later_all(rig: Rig) -> None:
    tell(rig, 10)
    rig.step()
    rig.told_generation, rig.told, rig.told_devices = 0, {}, {}
    rig.step()
    rig.told_generation = 7
    tell(rig, 16)
    rig.step()
    assert seconds(rig) == {"device": 16, "web-0": 16}


def test_where_nobody_looked_nothing_is_known(rig: Rig) -> None:
    rig.wall_ms = BEGIN_MS - MINUTE_MS
    tell(rig, 10)
    rig.step()
    end_ms = rig.wall_ms
    rig.told_generation, rig.told, rig.told_devices = 0, {}, {}
    rig.step()
    assert all(DEVICE_NS in row.amounts for row in rig.rows(until_ms=end_ms) if row.device == GPU)
    assert not any({DEVICE_NS, MEMORY_KIB_S} & row.amounts.keys() for row in rig.rows(since_ms=end_ms))


def test_what_was_known_to_be_nothing_stays_known_as_a_quarter(rig: Rig) -> None:
    for _ in range(3 * 24 * 4):
        tell(rig, 0)
        rig.step(QUARTER_MS)
    assert rig.query("SELECT MAX(rolled) FROM interval") == [(1,)]
    rows = [row for row in rig.rows(until_ms=BEGIN_MS + HOUR_MS) if row.device == GPU]
    assert rows
    assert all(row.amounts[DEVICE_NS] == 0 for row in rows)


def test_memory_by_the_hour(rig: Rig) -> None:
    rig.step()  # as long as the boot
    for _ in range(30):
        tell(rig, 0, 0)
        rig.step()
    gib_hours = {name: kib_s / (3600 << 20) for name, kib_s in rig.times(MEMORY_KIB_S).items()}
    assert gib_hours == {"device": 1.5, "web-0": 0.5, "unattributed": 1.0}


def test_memory_of_a_long_interval_is_not_known(rig: Rig) -> None:
    tell(rig, 0)
    rig.step()
    before = rig.times(MEMORY_KIB_S)
    rig.step(HOUR_MS)
    assert rig.times(MEMORY_KIB_S) == before


def test_memory_that_cannot_be_is_not_known_and_stops_nothing(rig: Rig) -> None:
    rig.step()
    before = rig.times(MEMORY_KIB_S)
    tell(rig, 7)
    rig.told_devices[GPU] = rig.told_devices[GPU]._replace(memory_bytes=COUNT_LIMIT)
    rig.step()
    assert rig.times(MEMORY_KIB_S) == {**before, "web-0": 60 << 20}
    rig.told[WEB, GPU] = rig.told[WEB, GPU]._replace(memory_bytes=1 << 90)
    rig.step()
    assert rig.times(MEMORY_KIB_S) == {**before, "web-0": 60 << 20}
    assert seconds(rig) == {"device": 7, "web-0": 7}


def test_who_tells_nothing_has_no_amount(rig: Rig) -> None:
    rig.told_devices[GPU] = Told(None, GIB, 0)
    rig.told[SSH, GPU] = Told(None, GIB, 1)
    rig.step()
    rig.step()
    assert all(DEVICE_NS not in row.amounts for row in rig.rows())
    assert all((MEMORY_KIB_S in row.amounts) == (row.device == GPU) for row in rig.rows())


def test_a_file_of_the_first_version_is_brought_up_to_date(tmp_path: Path) -> None:
    path = tmp_path / "usage.db"
    open_for_writing(path, MIGRATIONS[:1]).close()
    rig = Rig(path, told_generation=7)
    tell(rig, 10)
    rig.step()
    assert seconds(rig) == {"device": 10, "web-0": 10}
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA user_version").fetchone() == (len(MIGRATIONS),)
    connection.close()


def test_of_a_view() -> None:
    """Names of two containers one after the other are one; who has no name is the rest of the device."""
    again = replace(POD, container_id="c2")
    clients = (
        ClientUsage(POD, IGPU, (("render", 7), ("copy", 1)), (("system0", 4096),), 0, 30),
        ClientUsage(again, IGPU, (("render", 5000),), (), 0, 20, earlier_ns=4995),
        ClientUsage(HOST, NPU, (), (("memory", 10),), 0, 40),
        ClientUsage(LOST, IGPU, (("render", 100),), (("system0", 1),), 0, 50),
        ClientUsage(Owner(OwnerKind.HOST, unit="x"), "a device without counts", (("e", 1),), (), 0, 1),
    )
    totals = (ClientTotals(IGPU, (("render", 5200), ("copy", 1)), 3, earlier_ns=5000), ClientTotals(NPU, (), 0))
    view = replace(VIEW, epoch="boot/1", clients=clients, client_totals=totals, client_generation=9)
    snapshot = read_snapshot(view, 0, lambda _vendor: {})
    assert snapshot is not None
    names = ("pod", "shop", "web-0", "main", "u1", "")
    assert snapshot.told == {(names, IGPU): Told(13, 4096, 20)}
    assert snapshot.told_devices == {IGPU: Told(201, 4097, 0)}
    assert snapshot.told_generation == 9
    assert snapshot.told_departed == {IGPU: 201 - 113}
