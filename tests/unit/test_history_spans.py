# SPDX-License-Identifier: Apache-2.0
"""Adjacent spans of time add up, wherever they are cut and whenever each was asked for.

Before minutes became quarters of an hour, after that, and while the oldest usage goes.
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.history.upkeep import Bounds
from kubenpu.model.usage import PRESENT_MS, Part
from tests.fakes.history_rig import BEGIN_MS, DAY_MS, GPU, HOUR_MS, MINUTE_MS, QUARTER_MS, WEB, Rig

MEMORY = Path("/dev/shm")  # each interval is synced to the disk
WEEK_MS, RETENTION_MS = 7 * DAY_MS, 4 * DAY_MS
STEPS = st.tuples(st.sampled_from([MINUTE_MS, MINUTE_MS, 5 * MINUTE_MS + 13, QUARTER_MS]), st.integers(1, 9))
BUSY = st.lists(STEPS, min_size=10, max_size=40)
CUTS = st.lists(st.integers(0, 200), min_size=2, max_size=5)
DELAYS_MS = st.sampled_from([0, HOUR_MS, 2 * DAY_MS + 6 * HOUR_MS, 3 * DAY_MS, 3 * DAY_MS, 5 * DAY_MS])
"""On the day, when minutes became quarters, and when they are gone."""

LATER = [*[(12 * HOUR_MS, 1)] * 5, *[(1000, 0)] * 15, *[(12 * HOUR_MS, 1)] * 8]
Amounts = tuple[int, int]
"""Calls, and milliseconds that the device was there."""


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "usage.db")
    yield made
    made.recorder.close()


def amounts(rig: Rig, since_ms: int, until_ms: int) -> Amounts:
    rows = rig.rows("device", since_ms, until_ms)
    found = [row.amounts for row in rows if (row.part, row.device) == (Part.DEVICE, GPU)]
    return (sum(each["calls.submit"] for each in found), sum(each.get(PRESENT_MS, 0) for each in found))


def quarter(ms: int) -> int:
    return ms // QUARTER_MS * QUARTER_MS


@given(first=st.integers(0, 60), busy=BUSY, cuts=CUTS, delays=st.lists(DELAYS_MS, min_size=4, max_size=4))
@settings(max_examples=30, deadline=None)
def test_adjacent_spans_add_up_whenever_each_was_asked(
    first: int, busy: list[tuple[int, int]], cuts: list[int], delays: list[int]
) -> None:
    """A span that was asked while all of it was kept has what happened in its quarters; another has not more."""
    begin = BEGIN_MS + first * MINUTE_MS
    spans = pairwise(begin + cut * MINUTE_MS for cut in sorted(cuts))
    due = [(end + delay, begin, end) for (begin, end), delay in zip(spans, delays, strict=False)]
    directory = Path(tempfile.mkdtemp(dir=MEMORY if MEMORY.is_dir() else None))
    rig = Rig(directory / "usage.db", bounds=Bounds(RETENTION_MS // DAY_MS, 64), wall_ms=begin)
    stored: list[tuple[int, int, int]] = []
    try:
        for gap, calls in [(MINUTE_MS, 1), *busy, *LATER]:
            rig.call(WEB, calls)
            rig.step(gap)
            stored.append((rig.wall_ms, calls, gap))
            for asked in [each for each in due if each[0] <= rig.wall_ms]:
                due.remove(asked)
                check(rig, stored, *asked[1:])
        assert due == []
    finally:
        rig.recorder.close()
        shutil.rmtree(directory)


def check(rig: Rig, stored: list[tuple[int, int, int]], begin: int, end: int) -> None:
    low, high = quarter(begin), quarter(end)
    inside = [(calls, gap) for at, calls, gap in stored if low < at <= high]
    happened = (sum(calls for calls, _ in inside), sum(gap for _, gap in inside))
    told = amounts(rig, begin, end)
    if low >= rig.wall_ms - RETENTION_MS:
        assert told == happened
    else:
        assert all(amount <= most for amount, most in zip(told, happened, strict=True))


def test_weekly_reports_until_now_do_not_overlap(rig: Rig) -> None:
    """Asked for at 09:37, and some seconds later a week after."""
    rig.wall_ms = BEGIN_MS + 9 * HOUR_MS
    for _ in range(37):
        rig.call(WEB, 1)
        rig.step()
    first = rig.submits(rig.wall_ms - WEEK_MS, rig.wall_ms)["web-0"]
    for _ in range(30):
        rig.call(WEB, 1)
        rig.step()
    rig.step(WEEK_MS - 30 * MINUTE_MS + 3000)
    for _ in range(5):
        rig.step(1)
    assert rig.query("SELECT COUNT(*) FROM interval WHERE rolled") == [(5,)]
    assert (first, rig.submits(rig.wall_ms - WEEK_MS, rig.wall_ms)["web-0"]) == (30, 37)
