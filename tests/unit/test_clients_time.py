# SPDX-License-Identifier: Apache-2.0
"""Device time as clients tell it: what has a minute, what is believed, and cycles of unknown length."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from kubenpu.ledger.clients import Accounts, Seen
from kubenpu.ledger.clients_state import dump_rest, restore
from kubenpu.ledger.meters import PATIENCE, SPANS
from kubenpu.model.fdinfo import Fdinfo, Ticks

GPU = "0000:03:00.0"
SECOND = 1_000_000_000
PATHS = {1: "/pod1"}


def look(accounts: Accounts, *found: Seen) -> None:
    accounts.look(found, PATHS, 5)


# ---- what nobody knows the time of ----


def at(seconds: float, used_s: float, client_id: int = 1, start: float = 0.0, engines: int = 1) -> Seen:
    """Read `seconds` after boot, of a process that was started at `start`."""
    fdinfo = Fdinfo(client_id, {"render": int(used_s * SECOND)}, {}, {}, {"render": engines})
    now = int(seconds * SECOND)
    return Seen(GPU, client_id, (1,), fdinfo, now, now, int(start * SECOND))


def look_at(accounts: Accounts, seconds: float, *found: Seen) -> tuple[float, float]:
    """All that was used, and of that what is known to have been used in the minute before the look that showed it."""
    accounts.look(found, PATHS, int(seconds * SECOND))
    uses = accounts.uses.values()
    total, earlier = sum(sum(use.engine_ns.values()) for use in uses), sum(use.earlier_ns for use in uses)
    return total / SECOND, (total - earlier) / SECOND


def test_what_was_used_before_the_first_look_is_in_no_minute() -> None:
    accounts = Accounts()
    assert look_at(accounts, 5000, at(5000, 4000)) == (4000, 0)
    assert look_at(accounts, 5015, at(5015, 4012)) == (4012, 12)


def test_who_comes_between_two_looks_is_known_from_the_first_of_them() -> None:
    accounts = Accounts()
    look_at(accounts, 5000)
    assert look_at(accounts, 5015, at(5015, 9)) == (9, 9)
    assert look_at(accounts, 5030, at(5030, 9), at(5030, 3000, client_id=2)) == (9, 9), "it cannot be so old"


def test_what_was_used_while_nobody_looked_is_in_no_minute_but_the_last() -> None:
    accounts = Accounts()
    look_at(accounts, 5000, at(5000, 0))
    accounts = restore(list(accounts.shown()), json.loads(json.dumps(dump_rest(accounts))))
    assert look_at(accounts, 9000, at(9000, 3000)) == (3000, 60)
    assert look_at(accounts, 9015, at(9015, 3010)) == (3010, 70)


def test_who_was_listed_and_not_read_is_not_new() -> None:
    accounts = Accounts()
    look_at(accounts, 5000)
    asleep = Seen(GPU, 1, (1,), None, end_ns=5015 * SECOND)
    look_at(accounts, 5015, asleep)
    accounts = restore(list(accounts.shown()), json.loads(json.dumps(dump_rest(accounts))))
    look_at(accounts, 5030, asleep)
    assert look_at(accounts, 5200, at(5200, 150)) == (150, 60)


def test_what_a_process_is_too_young_for_is_not_believed() -> None:
    accounts = Accounts()
    assert look_at(accounts, 5000, at(5000, 500, start=4900)) == (0, 0)
    assert accounts.running_ahead() == 1
    for n in range(1, PATIENCE):
        total = look_at(accounts, 5000 + 15 * n, at(5000 + 15 * n, 500 + n, start=4900))
    assert total == (PATIENCE - 1, PATIENCE - 1), "what grew meanwhile"
    assert accounts.running_ahead() == 0


def test_a_job_that_is_told_when_it_ends() -> None:
    accounts = Accounts()
    look_at(accounts, 1000, at(1000, 0))
    for n in range(1, 20):
        look_at(accounts, 1000 + 15 * n, at(1000 + 15 * n, 0))
    assert look_at(accounts, 1300, at(1300, 290)) == (290, 60)


# ---- cycles ----

HZ = 19_200_000


def ticking(busy_s: float, clock_s: float, at_s: float, slept_ms: int = 0, client_id: int = 1) -> Seen:
    """`clock_s`: for how long the device's counter has run."""
    ticks = Ticks(int(busy_s * HZ), int(clock_s * HZ))
    end = int(at_s * SECOND)
    return Seen(GPU, client_id, (1,), Fdinfo(client_id, {}, {"rcs": ticks}, {}), end - 1000, end, slept_ms=slept_ms)


def rcs(accounts: Accounts) -> float | None:
    """Seconds, of whomever."""
    found = [use.engine_ns["rcs"] for use in accounts.uses.values() if "rcs" in use.engine_ns]
    return round(sum(found) / SECOND, 2) if found else None


def test_cycles_become_time_when_the_clock_is_known() -> None:
    accounts = Accounts()
    look(accounts, ticking(1, 100, 10))
    look(accounts, ticking(8, 115, 25))
    assert rcs(accounts) is None, "one span proves nothing, and not known is not 0"
    look(accounts, ticking(9, 130, 40))
    assert rcs(accounts) == 9, "with what was used before"
    look(accounts, ticking(10, 145, 55))
    assert rcs(accounts) == 10


def test_what_a_client_used_that_ended_before_the_clock_was_known() -> None:
    accounts = Accounts()
    for n in range(1, 21):
        look(accounts, ticking(10, 1000 + 15 * n, 15 * n, client_id=n))
    assert rcs(accounts) == 200


def test_a_device_that_sleeps_in_every_interval() -> None:
    accounts = Accounts()
    for n in range(1, 41):
        look(accounts, ticking(5 * n, 10 * n, 15 * n, slept_ms=5000 * n))
    assert rcs(accounts) == 200


@pytest.mark.parametrize("wrong", [0.0, 7.0, 10**6])
def test_one_wrong_reading_of_the_clock_does_not_matter(wrong: float) -> None:
    accounts = Accounts()
    for n in range(1, 20):
        look(accounts, ticking(15 * n, wrong if n == 5 else 1000 + 15 * n, 15 * n))
    assert rcs(accounts) == 15 * 19


def test_a_machine_that_stood_while_the_device_went_on() -> None:
    """Of the minute that is missing nothing is known; after it all is well again."""
    accounts = Accounts()
    for n in range(1, 45):
        paused = 60 if n > 5 else 0
        look(accounts, ticking(15 * n + paused, 1000 + 15 * n + paused, 15 * n))
    assert rcs(accounts) == 15 * 43


def test_a_counter_that_runs_otherwise_from_now_on() -> None:
    accounts = Accounts()
    for n in range(1, 6):
        look(accounts, ticking(n, 15 * n, 15 * n))
    before = rcs(accounts)
    for n in range(1, SPANS + 1):  # a quarter of the cycles
        look(accounts, ticking(5 + n / 4, 75 + 15 * n / 4, 75 + 15 * n))
    learned = rcs(accounts)
    look(accounts, ticking(5 + 6 / 4, 75 + 15 * 6 / 4, 75 + 15 * 6))
    assert before == 5
    assert learned is not None
    assert rcs(accounts) == learned + 1


def test_a_suspended_machine_teaches_nothing() -> None:
    accounts = Accounts()
    look(accounts, ticking(1, 1000, 10))
    for n in range(3):
        assert rcs(accounts) is None
        look(accounts, replace(ticking(2 + n, 1015 + 15 * n, 3625 + 15 * n), suspended_ns=3600 * SECOND))
    assert rcs(accounts) == 4


def test_more_cycles_than_can_be() -> None:
    accounts = Accounts()
    for n in range(1, 10):
        look(accounts, ticking(10**6 if n == 5 else n, 15 * n, 15 * n))
    assert rcs(accounts) == 9
