# SPDX-License-Identifier: Apache-2.0
"""Names that come late, go and come back: what they bring along was nobody's before, and is of no later interval."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.history.growth import Interval, Key, Totals, find_late, happened, plan_times
from kubenpu.history.schema import DEVICE, UNATTRIBUTED
from kubenpu.history.snapshot import Names, Told
from kubenpu.history.told import plan_time
from kubenpu.model.usage import ACTIVE_MS, BY_DEVICE_TIME_MS, SHARE_MS
from tests.fakes.history_rig import BEGIN_MS, GPU, JOB, MINUTE_MS, WEB, Rig, some

MS = 1_000_000
S = 1000 * MS
WORKLOADS = range(5, 9)
Minute = tuple[dict[int, int], frozenset[int]]
"""Milliseconds that the device worked for whom, and who has a name at its end."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "usage.db", told_generation=7)
    yield made
    made.recorder.close()


def test_a_name_that_comes_late_takes_its_calls_along(rig: Rig) -> None:
    """Over all time they are the pod's; seen from between, they were nobody's before and left there."""
    rig.wall_ms = BEGIN_MS - MINUTE_MS
    rig.call(None, 5)
    rig.step()
    between = rig.wall_ms
    rig.totals[WEB, GPU], rig.first_ns[WEB, GPU] = rig.devices[GPU], 1
    rig.step()
    assert rig.submits() == {"device": 5, "unattributed": 0, "web-0": 5}
    assert rig.submits(since_ms=between) == {"device": 0, "unattributed": -5, "web-0": 5}


class Workers:
    """Who works for seconds a minute, has made a call in it, and may have no name yet."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.worked, self.calls = rig, Counter[Names](), Counter[Names]()

    def step(self, seconds: dict[Names, int], named: set[Names]) -> None:
        rig = self.rig
        self.worked.update(seconds)
        self.calls.update(name for name, s in seconds.items() if s)
        rig.devices[GPU] = some(self.calls.total())
        rig.told_devices = {GPU: Told(self.worked.total() * S, None, 0)}
        rig.totals = {(name, GPU): some(self.calls[name]) for name in named}
        rig.told = {(name, GPU): Told(self.worked[name] * S, None, 1) for name in named}
        rig.first_ns = dict.fromkeys(rig.totals, 1)
        rig.step()


def shares(rig: Rig, *measures: str) -> dict[str, int]:
    """Seconds in the interval that was stored last."""
    text = """
        SELECT COALESCE(NULLIF(pod, ''), kind), value / 1000 FROM usage JOIN measure ON measure.id = measure
        JOIN workload ON workload.id = workload
        WHERE name = '{}' AND device = 1 AND interval = (SELECT MAX(id) FROM interval)
    """
    return {str(name): int(str(value)) for each in measures for name, value in rig.query(text.format(each))}


def test_a_name_that_comes_late_was_not_at_work_in_that_minute(rig: Rig) -> None:
    workers = Workers(rig)
    for _ in range(20):
        workers.step({WEB: 25, JOB: 30}, {JOB})
    assert shares(rig, SHARE_MS) == {"train-0": 32, "unattributed": 27}  # the rest of the minute half and half
    workers.step({JOB: 30}, {JOB, WEB})
    assert shares(rig, BY_DEVICE_TIME_MS) == {"device": 30}
    assert shares(rig, SHARE_MS) == {"train-0": 60}
    assert shares(rig, ACTIVE_MS) == {"device": 60, "train-0": 60}
    workers.step({JOB: 30, WEB: 15}, {JOB, WEB})
    assert shares(rig, ACTIVE_MS) == {"device": 60, "train-0": 60, "web-0": 60}


def test_a_name_that_comes_late_while_it_works_has_that_minute(rig: Rig) -> None:
    workers = Workers(rig)
    workers.step({WEB: 50, JOB: 10}, {JOB})
    workers.step({WEB: 20, JOB: 10}, {JOB, WEB})
    assert shares(rig, SHARE_MS) == {"train-0": 10 + 15, "web-0": 20 + 15}


def test_a_name_that_comes_back_brings_what_was_nobodys_meanwhile(rig: Rig) -> None:
    workers = Workers(rig)
    workers.step({WEB: 20, JOB: 10}, {JOB, WEB})
    workers.step({WEB: 40, JOB: 10}, {JOB})
    workers.step({JOB: 10}, {JOB, WEB})
    assert shares(rig, SHARE_MS) == {"train-0": 60}


def test_who_begins_beside_a_late_name_keeps_its_minute(rig: Rig) -> None:
    workers = Workers(rig)
    workers.step({WEB: 50}, set())
    begin_ns = rig.boot_ms * MS
    rig.totals[JOB, GPU], rig.first_ns[JOB, GPU] = some(1), begin_ns + 1
    rig.totals[WEB, GPU], rig.first_ns[WEB, GPU] = some(1), 1
    rig.devices[GPU] = some(2)
    rig.told = {(WEB, GPU): Told(50 * S, None, 1), (JOB, GPU): Told(6 * S, None, begin_ns + 1)}
    rig.told_devices = {GPU: Told(56 * S, None, 0)}
    rig.step()
    assert shares(rig, BY_DEVICE_TIME_MS, SHARE_MS) == {"device": 6, "train-0": 60}


MINUTES = st.lists(
    st.tuples(
        st.dictionaries(st.sampled_from(WORKLOADS), st.integers(0, 40_000)), st.frozensets(st.sampled_from(WORKLOADS))
    ),
    min_size=1,
    max_size=12,
)


@given(MINUTES)
def test_no_minute_has_more_device_time_than_the_device_worked(minutes: list[Minute]) -> None:
    """And whoever had a name before and after it has what the device worked for him, whoever else came or went."""
    totals, had, first_ns, all_so_far = Totals(), frozenset[int](), dict[int, int](), Counter[int]()
    for number, (worked, named) in enumerate(minutes):
        interval = Interval(0, 0, (number + 1) * MINUTE_MS, MINUTE_MS)
        all_so_far.update({workload: ms * MS for workload, ms in worked.items()})
        for workload, ms in worked.items():
            if ms:
                first_ns.setdefault(workload, number * MINUTE_MS * MS)
        now: dict[Key, Told] = {(DEVICE, 0): Told(all_so_far.total(), None, 0)}
        here = {(each, 0): first_ns[each] for each in named if each in first_ns}
        now |= {key: Told(all_so_far[key[0]], None, first) for key, first in here.items()}
        late = find_late(totals, here, interval)
        totals, growth = plan_time(totals, now, {}, True, interval.boot_end_ms)
        spent = happened(growth, late)
        own = sum(worked.values())
        assert spent.pop((DEVICE, 0), 0) == own * MS
        for workload in had & named:
            assert spent.get((workload, 0), 0) == worked.get(workload, 0) * MS
        assert {workload for workload, _ in spent} <= {*named, UNATTRIBUTED}
        assert sum(spent.values()) == own * MS
        found = plan_times(
            {}, interval, {0: MINUTE_MS}, {0}, holders={}, worked={**spent, (DEVICE, 0): own * MS} if own else spent
        )
        divided = Counter[str]()
        for _, measure, ms in found:
            divided[measure] += ms
        assert divided[BY_DEVICE_TIME_MS] == divided[SHARE_MS] == min(own, MINUTE_MS)
        had = named & first_ns.keys()


def test_who_is_named_in_part_only_takes_no_more_than_there_is() -> None:
    """A unit's other cgroup gets its name: nobody knows what it did in this interval, but all of it is the device's."""
    growth = {(DEVICE, 0): 10 * S, (UNATTRIBUTED, 0): -500 * S, (5, 0): 505 * S, (6, 0): 5 * S}
    spent = happened(growth, set())
    interval = Interval(0, 0, 10 * MINUTE_MS, MINUTE_MS)
    found = list(plan_times({}, interval, {0: MINUTE_MS}, {0}, holders={}, worked=spent))
    assert [ms for _, measure, ms in found if measure == BY_DEVICE_TIME_MS] == [10_000]
    assert sum(ms for _, measure, ms in found if measure == SHARE_MS) == 10_000
