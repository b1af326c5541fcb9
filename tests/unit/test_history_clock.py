# SPDX-License-Identifier: Apache-2.0
"""The history and the wall's clock: what was stored before somebody told the node the time is where it happened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.history.upkeep import CLOCK_SET_MS, Bounds
from tests.fakes.history_rig import BEGIN_MS, DAY_MS, HOUR_MS, MINUTE_MS, QUARTER_MS, WEB, Rig


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "usage.db", bounds=Bounds(90, 64))
    yield made
    made.recorder.close()


def call_for(rig: Rig, minutes: int, jump_ms: int = 0) -> None:
    """A call a minute; the clock is set in the first."""
    for minute in range(minutes):
        rig.call(WEB, 1)
        rig.step(jump_ms=0 if minute else jump_ms)


def ends(rig: Rig) -> list[int]:
    """Minutes from now to the ends of all intervals."""
    found = rig.query("SELECT end_ms FROM interval ORDER BY id")
    return [round((int(str(end)) - rig.wall_ms) / MINUTE_MS) for (end,) in found]


@pytest.mark.parametrize(
    "wall_ms", [10 * MINUTE_MS, BEGIN_MS - 400 * DAY_MS, BEGIN_MS - HOUR_MS, BEGIN_MS + 3 * DAY_MS]
)
def test_a_clock_that_is_set_after_boot_was_wrong_before(rig: Rig, wall_ms: int) -> None:
    """1970, the day of the build, the last shutdown; or a clock that was ahead. Names are kept as long as usage."""
    rig.wall_ms = wall_ms
    call_for(rig, 30)
    rig.retire(WEB)
    rig.step()
    call_for(rig, 30, jump_ms=BEGIN_MS - wall_ms)
    assert ends(rig) == list(range(-60, 1))
    rig.recorder.bounds = Bounds(1, 64)
    call_for(rig, 3)
    assert rig.submits(BEGIN_MS - DAY_MS, rig.wall_ms + QUARTER_MS) == {"device": 63, "unattributed": 0, "web-0": 63}


def test_counters_that_began_anew_before_the_clock_was_set_move_too(rig: Rig) -> None:
    rig.wall_ms = 0
    call_for(rig, 3)
    rig.begin_anew("boot-1/8", rig.boot_ms + 1000)
    call_for(rig, 3)
    rig.begin_anew("boot-1/9", rig.boot_ms + 1000)
    call_for(rig, 1, jump_ms=BEGIN_MS)
    assert ends(rig) == [-6, -5, -4, -3, -2, -1, 0]


def test_another_boot_stays_where_it_is(rig: Rig) -> None:
    """Nobody knows how long the node was off."""
    call_for(rig, 3)
    before = rig.query("SELECT end_ms FROM interval")
    rig.begin_anew("boot-11/1", 1000)
    rig.boot_ms, rig.wall_ms = 2000, 0
    call_for(rig, 2)
    call_for(rig, 1, jump_ms=BEGIN_MS + DAY_MS)
    assert rig.query("SELECT end_ms FROM interval WHERE id <= 3") == before
    assert ends(rig)[3:] == [-2, -1, 0]


def test_a_node_that_was_paused_keeps_its_dates(rig: Rig) -> None:
    """A virtual machine, say: its clock was right, and is put forward."""
    rig.boot_ms = rig.counting_ms = 3 * DAY_MS
    call_for(rig, 3)
    call_for(rig, 1, jump_ms=HOUR_MS)
    assert ends(rig) == [-63, -62, -61, 0]


def test_a_mistake_that_is_undone_leaves_nothing_in_the_future(rig: Rig) -> None:
    rig.boot_ms = rig.counting_ms = 3 * DAY_MS
    call_for(rig, 3)
    call_for(rig, 5, jump_ms=30 * DAY_MS)
    call_for(rig, 3, jump_ms=-30 * DAY_MS)
    assert ends(rig) == list(range(-8, 1))  # the first three were so old that they became one
    assert rig.submits(until_ms=rig.wall_ms + QUARTER_MS)["web-0"] == 11


def test_a_clock_that_is_put_right_a_little_moves_nothing(rig: Rig) -> None:
    call_for(rig, 3)
    call_for(rig, 1, jump_ms=CLOCK_SET_MS)
    assert ends(rig) == [-8, -7, -6, 0]
