# SPDX-License-Identifier: Apache-2.0
"""A device whose driver changes: what was stored keeps the driver of its time, nothing is lost or counted twice.

And what can be known changes with it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.history.report import read_page
from kubenpu.history.schema import open_for_writing
from kubenpu.history.snapshot import Names, Told
from kubenpu.history.upkeep import Bounds
from kubenpu.model.usage import ACTIVE_MS, ALLOCATED_MS, DEVICE_NS, PRESENT_MS, SHARE_MS, Part, add_up
from tests.fakes.history_rig import ALL, BEGIN_MS, DAY_MS, GPU, HOUR_MS, MINUTE_MS, NPU, QUARTER_MS, WEB, Rig

Driver = str | None


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    made = Rig(tmp_path / "state" / "usage.db", wall_ms=BEGIN_MS - MINUTE_MS)
    yield made
    made.recorder.close()


def by_driver(rig: Rig, measure: str, since_ms: int = 0, until_ms: int = 10**14) -> dict[tuple[Driver, str], int]:
    rows = [row for row in rig.rows("pod", since_ms, until_ms) if row.device == GPU]
    return {(row.vendor, row.pod or row.part.value): row.amounts[measure] for row in rows if row.amounts.get(measure)}


def work(rig: Rig, minutes: int, calls: int = 1) -> None:
    for _ in range(minutes):
        rig.call(WEB, calls)
        rig.step()


@pytest.mark.parametrize("reboot", [False, True])
def test_the_past_keeps_its_driver(rig: Rig, reboot: bool) -> None:
    work(rig, 16)
    before, end = rig.rows("pod", until_ms=BEGIN_MS + QUARTER_MS), rig.wall_ms
    assert end == BEGIN_MS + QUARTER_MS
    if reboot:
        rig.begin_anew("boot-2/1", MINUTE_MS)
    rig.vendors[GPU] = "xe"
    work(rig, 2)
    assert rig.rows("pod", until_ms=end) == before
    whole, web = ("i915", "device"), ("i915", "web-0")
    assert by_driver(rig, "calls.submit") == {whole: 16, web: 16, ("xe", "device"): 2, ("xe", "web-0"): 2}
    assert by_driver(rig, SHARE_MS, end) == {("xe", "web-0"): 2 * MINUTE_MS}


def test_a_driver_that_comes_back_goes_on(rig: Rig) -> None:
    for vendor in ("i915", "vfio-pci", None, "i915", "vfio-pci"):
        rig.vendors[GPU] = vendor
        work(rig, 1, calls=5)
        rig.kill()
    devices = {vendor: calls for (vendor, part), calls in by_driver(rig, "calls.submit").items() if part == "device"}
    assert devices == {"i915": 10, "vfio-pci": 10, None: 5}
    assert by_driver(rig, "calls.submit")["i915", "web-0"] == 10
    assert rig.query(f"SELECT vendor FROM device WHERE latest AND address = '{GPU}'") == [("vfio-pci",)]
    for table in ("last", "source"):
        assert rig.query(f"SELECT DISTINCT vendor FROM {table} JOIN device ON id = device WHERE address = '{GPU}'") == [
            ("vfio-pci",)
        ]


def test_totals_go_along(rig: Rig) -> None:
    """What a lost name had, what departed and what the driver told: nothing comes again under the new driver."""
    rig.told_generation = 7
    rig.told, rig.told_devices = {(WEB, GPU): Told(10, None, 1)}, {GPU: Told(10, None, 0)}
    work(rig, 1, calls=5)
    kept = dict(rig.totals), dict(rig.first_ns)
    rig.totals, rig.first_ns = {}, {}
    rig.step()
    rig.vendors[GPU] = "xe"
    rig.step()
    rig.totals, rig.first_ns = kept
    rig.told, rig.told_devices = {(WEB, GPU): Told(13, None, 1)}, {GPU: Told(13, None, 0)}
    work(rig, 1)
    whole, web = ("i915", "device"), ("i915", "web-0")
    assert by_driver(rig, "calls.submit") == {whole: 5, web: 5, ("xe", "device"): 1, ("xe", "web-0"): 1}
    assert by_driver(rig, DEVICE_NS) == {whole: 10, web: 10, ("xe", "device"): 3, ("xe", "web-0"): 3}


def test_a_device_that_is_gone_keeps_its_driver(rig: Rig) -> None:
    work(rig, 1)
    rig.vendors[GPU], rig.present = None, frozenset({NPU})
    work(rig, 1)
    rig.vendors[GPU], rig.present = "i915", frozenset({GPU, NPU})
    work(rig, 1)
    assert by_driver(rig, "calls.submit") == {("i915", "device"): 3, ("i915", "web-0"): 3}


def test_a_device_of_one_address_and_two_drivers_adds_up(rig: Rig) -> None:
    rig.call(None, 3)
    work(rig, 5)
    rig.vendors[GPU] = "xe"
    rig.call(None, 2)
    work(rig, 7)
    for vendor, calls, ms in (("i915", 8, 5 * MINUTE_MS), ("xe", 9, 7 * MINUTE_MS)):
        rows = [row for row in rig.rows("pod") if (row.device, row.vendor) == (GPU, vendor)]
        (whole,) = (row for row in rows if row.part is Part.DEVICE)
        assert (whole.amounts["calls.submit"], whole.amounts[PRESENT_MS]) == (calls, ms)
        assert sum(row.amounts["calls.submit"] for row in rows if row is not whole) == calls
    pages = [read_page(rig.path, "pod", 0, 1e11, deadline_s=60, page=range(n, n + 1)) for n in range(2)]
    assert [total for _, total in pages] == [2, 2]
    found = [[row.vendor for row in page if row.part is Part.WORKLOAD] for page, _ in pages]
    assert found == [["i915"], ["xe"]]
    assert add_up([*pages[0][0], *(row for row in pages[1][0] if row.part is Part.WORKLOAD)])
    assert not add_up(replace(row, vendor="i915" if row.part is Part.WORKLOAD else row.vendor) for row in rig.rows())


def test_a_file_with_one_driver_for_each_address_is_brought_up_to_date(rig: Rig) -> None:
    rig.call(None, 5)
    work(rig, 16)
    end = rig.wall_ms
    before = rig.rows(until_ms=end)
    rig.make_old(version=3)
    open_for_writing(rig.path).close()
    assert rig.rows(until_ms=end) == before
    rig.vendors[GPU] = "xe"
    work(rig, 1)
    assert rig.rows(until_ms=end) == before
    assert by_driver(rig, "calls.submit", end) == {("xe", "device"): 1, ("xe", "web-0"): 1}


# ---- what can be known ----

HIDDEN = {"calls.submit", "errors.submit"}


def known(rig: Rig, since_ms: int = 0, until_ms: int = 10**14, vendor: Driver = "i915") -> frozenset[str]:
    rows = [row for row in rig.rows("device", since_ms, until_ms) if (row.device, row.vendor) == (GPU, vendor)]
    return frozenset(measure for row in rows for measure in row.amounts)


def quarters(rig: Rig, count: int) -> Iterator[tuple[int, int]]:
    """Of so many past quarters of an hour, the oldest first."""
    end = rig.wall_ms // QUARTER_MS * QUARTER_MS
    for begin in range(end - count * QUARTER_MS, end, QUARTER_MS):
        yield begin, begin + QUARTER_MS


def be_quarter(rig: Rig) -> None:
    for _ in range(15):
        rig.call_other(WEB, 3)
        rig.step()


def test_another_driver_lets_other_things_be_known(rig: Rig) -> None:
    """Of what it does not let one know there is no 0, and of what the last one did not there is none later."""
    rig.vendors[GPU], rig.measured[GPU] = None, ALL - HIDDEN
    rig.call_other(WEB, 3)
    rig.step()
    rig.vendors[GPU], rig.measured[GPU] = "mine", ALL
    rig.step()
    assert known(rig, vendor="mine") >= HIDDEN
    assert not HIDDEN & known(rig, vendor=None)


def pass_days(rig: Rig, days: int) -> None:
    for _ in range(days):
        rig.step(DAY_MS)
        for _ in range(9):
            rig.step(1)


@pytest.mark.parametrize("later_days", [0, 3])
def test_with_the_same_driver_it_changes_too(rig: Rig, later_days: int) -> None:
    """A Hailo release that no table knows: 0 before, nothing since, the number of the known part where there are both.

    Also when minutes have become quarters.
    """
    rig.step()
    be_quarter(rig)
    rig.measured[GPU] = ALL - HIDDEN
    for _ in range(5):
        rig.call_other(WEB, 3)
        rig.step()
    rig.measured[GPU] = ALL
    be_quarter(rig)
    rig.measured[GPU] = ALL - HIDDEN
    be_quarter(rig)
    be_quarter(rig)
    spans = list(quarters(rig, 4))
    pass_days(rig, later_days)
    found = [HIDDEN & known(rig, *span) for span in spans]
    assert found == [HIDDEN, HIDDEN, HIDDEN, set()]  # the second and the third in part
    assert known(rig) >= HIDDEN
    assert known(rig, *spans[3]) >= {"calls.other", "errors.other", SHARE_MS}


def test_what_could_be_known_goes_with_the_usage(rig: Rig) -> None:
    rig.recorder.bounds = Bounds(30, 64)
    be_quarter(rig)
    rig.measured[GPU] = ALL - HIDDEN
    pass_days(rig, 29)
    rows = f"SELECT COUNT(*) FROM measured JOIN measure ON id = measure WHERE device = 1 AND name IN {tuple(HIDDEN)}"
    assert rig.query(rows) == [(2,)]
    pass_days(rig, 5)
    assert rig.query(rows) == [(0,)]
    assert rig.query("SELECT COUNT(*) > 0 FROM measured WHERE device = 1") == [(1,)]


def test_what_the_kubelet_does_not_tell_is_not_known(rig: Rig) -> None:
    """Where a device was given once, that it is given to nobody is known as long as the kubelet answers."""
    given, nobody = frozenset({(WEB, GPU)}), frozenset[tuple[Names, str]]()
    rig.step()
    for held in (nobody, given, nobody, None, nobody):
        rig.held = held
        be_quarter(rig)
    found = [ALLOCATED_MS in known(rig, *span) for span in quarters(rig, 5)]
    assert found == [False, True, True, False, True]


def test_who_was_active_is_not_known_of_a_time_that_nobody_watched(rig: Rig) -> None:
    rig.step()
    be_quarter(rig)
    rig.call_other(WEB, 1)
    rig.step(2 * HOUR_MS)
    end = rig.wall_ms
    assert ACTIVE_MS in known(rig, until_ms=end - QUARTER_MS)
    assert ACTIVE_MS not in known(rig, since_ms=end - QUARTER_MS)
    rig.step(QUARTER_MS)
    for _ in range(15):
        rig.step()
    assert ACTIVE_MS in known(rig, since_ms=end + QUARTER_MS)


def test_only_what_changes_of_it_is_written(rig: Rig) -> None:
    be_quarter(rig)
    rows = rig.query("SELECT COUNT(*) FROM measured")
    be_quarter(rig)
    assert rig.query("SELECT COUNT(*) FROM measured") == rows


def test_of_a_file_of_an_earlier_version_everything_stays_known(rig: Rig) -> None:
    work(rig, 16)
    before = rig.rows()
    rig.make_old(version=4)
    open_for_writing(rig.path).close()
    assert rig.rows() == before
    rig.measured[GPU] = ALL - HIDDEN
    be_quarter(rig)
    be_quarter(rig)
    assert rig.rows(until_ms=BEGIN_MS + QUARTER_MS) == before
    assert not HIDDEN & known(rig, since_ms=BEGIN_MS + 2 * QUARTER_MS)
