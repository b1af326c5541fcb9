# SPDX-License-Identifier: Apache-2.0
"""Which numbers of a driver are believed: a jump is not, a step back is waited for, nothing is beyond what can be."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.ledger.meters import LATE_NS, SPANS, Clock, Meter, Speed

SECOND = 1_000_000_000
LOOK_S = 15


def total(values: Sequence[float], engines: int = 1) -> list[float]:
    """What is counted after each of these readings, 15 seconds apart from the first, which is the base."""
    meter = Meter(0, 0, int(values[0] * SECOND))
    sums = [values[0]]
    for n, value in enumerate(values[1:], 1):
        grown, _ = meter.read(int(value * SECOND), n * LOOK_S * SECOND, engines)
        sums.append(sums[-1] + grown / SECOND)
    return sums


@pytest.mark.parametrize(
    ("values", "sums"),
    [
        pytest.param([100, 110, 125, 140], [100, 110, 125, 140], id="all is well"),
        pytest.param([100, 90, 95, 103], [100, 100, 100, 103], id="back for a while"),
        pytest.param([100, 110, 10**9, 130, 145], [100, 110, 110, 130, 145], id="one jump"),
        pytest.param([100, 10**9, 10**6, 135, 150], [100, 100, 100, 135, 150], id="two jumps"),
        pytest.param([100, 5, 15, 25, 35, 45], [100, 100, 100, 100, 130, 140], id="back for good"),
        pytest.param([100, 5000, 5010, 5020, 5030, 5040], [100, 100, 100, 100, 130, 140], id="ahead for good"),
        pytest.param([100, 0, 0, 0, 0, 1], [100, 100, 100, 100, 100, 101], id="anew and idle"),
        pytest.param([100, 500, 900, 1300, 1700, 1701], [100, 100, 100, 100, 100, 101], id="faster than time"),
    ],
)
def test_what_is_counted(values: Sequence[float], sums: Sequence[float]) -> None:
    assert total(values) == sums


def test_engines_side_by_side() -> None:
    values = [0, 60, 120, 180]
    assert total(values, engines=4) == values
    assert total(values, engines=1)[1] == 0


def test_a_driver_may_be_late() -> None:
    most = LOOK_S + LATE_NS // SECOND
    assert total([0, most]) == [0, most]
    assert total([0, most + 0.001]) == [0, 0]
    assert total([0, 0, 0, 0, 40]) == [0, 0, 0, 0, 40], "as long as it said nothing, it may have worked"


@given(
    st.lists(st.tuples(st.integers(0, 1 << 63), st.integers(0, 100 * SECOND)), max_size=30),
    st.integers(1, 4),
    st.sampled_from([Speed(1, 1), Speed(19, 1000)]),
)
def test_never_down_and_never_more_than_can_be(readings: Sequence[tuple[int, int]], engines: int, speed: Speed) -> None:
    meter, now, grown, recent = Meter(0, 0), 0, 0, 0
    for value, pause in readings:
        now += pause
        ns, booked = meter.read(value, now, engines, speed)
        assert 0 <= booked <= ns
        grown, recent = grown + ns, recent + booked
        assert booked <= engines * 60 * SECOND
        assert recent <= engines * now
    assert grown <= engines * (now + LATE_NS * len(readings))


# ---- cycle counters ----


def read(clock: Clock, value: int, begin: float, took: float = 0.0, slept_ms: int = 0) -> Speed | None:
    clock.read(value, int(begin * SECOND), int((begin + took) * SECOND), slept_ms, 0)
    return clock.speed


def test_a_clock_that_stands_teaches_nothing() -> None:
    clock = Clock()
    assert {read(clock, 1000, 10.0 * n) for n in range(1, 9)} == {None}


def test_readings_close_together_or_slow_teach_nothing() -> None:
    clock = Clock()
    assert [read(clock, 1000 + 10 * n, 5 + 0.1 * n) for n in range(10)] == [None] * 10
    clock = Clock()
    assert [read(clock, 1000 + 10 * n, 1.5 * n, took=0.2) for n in range(1, 10)] == [None] * 9


def test_a_slow_reading_is_passed_over() -> None:
    clock = Clock()
    speeds = [read(clock, 1000 * n, 10.0 * n, took=4.0 if n == 2 else 0.0) for n in range(1, 5)]
    assert speeds[:3] == [None] * 3
    assert speeds[3] is not None
    assert speeds[3].ns == speeds[3].counts * SECOND // 100


def test_spans_that_disagree_teach_nothing_and_are_forgotten() -> None:
    clock = Clock()
    value = 10
    for n in range(1, SPANS + 1):
        value *= 2
        assert read(clock, value, 10.0 * n) is None
    read(clock, value + 7, 10.0 * SPANS + 10)
    assert read(clock, value + 14, 10.0 * SPANS + 20) == Speed(7, 10 * SECOND)
