# SPDX-License-Identifier: Apache-2.0
"""Rates: the difference over the time, and nothing where that would be a guess."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.cli.rates import Rates, Sample, rate_devices, rate_workloads
from kubenpu.exporters.dbus_client import CounterRow, CountsRow, NodeRow
from tests.fakes.fake_client import LOST, NODE, OFF, WEB, counts, device, row

BEGIN_S = 5000.0


def sample(at: float, rows: Sequence[CounterRow] = (), node: NodeRow = NODE) -> Sample:
    return Sample(at, BEGIN_S + at, node, (), tuple(rows))


def rates(before: Sample | None, after: Sample) -> Rates | None:
    (line,) = rate_workloads(before, after)
    return line.rates


def between(before: CountsRow, after: CountsRow, seconds: float = 2.0) -> Rates | None:
    return rates(sample(0, [row(of=before)]), sample(seconds, [row(of=after)]))


def test_rates_are_differences_over_the_time() -> None:
    found = between(counts(100, 5, 10**9, other=7), counts(160, 8, 4 * 10**9, other=17))
    assert found == Rates(submits=30.0, calls=35.0, errors=1.5, waiting=1.5)
    assert not found.idle


def test_nothing_done_is_zero_and_idle() -> None:
    found = between(counts(100, 5, 7), counts(100, 5, 7))
    assert found == Rates(0.0, 0.0, 0.0, 0.0)
    assert found.idle


def test_submits_that_nobody_can_see_have_no_rate() -> None:
    found = between(counts(None, other=1), counts(None, other=5))
    assert found is not None
    assert (found.submits, found.calls) == (None, 2.0)


def test_a_kind_that_shows_up_counts_from_zero() -> None:
    found = between(counts(None), counts(6))
    assert found is not None
    assert found.submits == 3.0


def test_without_a_sample_before_there_is_no_rate() -> None:
    assert rates(None, sample(0, [row()])) is None


@pytest.mark.parametrize("since", [998, 1002, 4000])
def test_counts_of_another_time_have_no_rate(since: int) -> None:
    """They began anew before the first sample, or older ones were added."""
    assert between(counts(10), counts(10**9, since=since)) is None


@pytest.mark.parametrize("since", [999, 1000, 1001])
def test_the_begin_may_be_rounded_otherwise_after_a_restart(since: int) -> None:
    assert between(counts(10), counts(20, since=since)) is not None


def test_a_decrease_is_no_rate() -> None:
    assert between(counts(10, 2, 50), counts(9, 2, 50)) is None
    assert between(counts(10, 2, 50), counts(10, 1, 50)) is None
    assert between(counts(10, 2, 50), counts(10, 2, 49)) is None


def test_a_new_workload_has_all_its_calls_in_the_interval() -> None:
    found = rates(sample(0), sample(2, [row(of=counts(8, since=int(BEGIN_S) + 1))]))
    assert found == Rates(4.0, 4.0, 0.0, 0.0)


def test_a_workload_that_is_new_by_name_only_has_no_rate() -> None:
    """Its calls were those of an unknown pod until now."""
    before = sample(0, [row(LOST, counts(10**9))])
    (line,) = rate_workloads(before, sample(2, [row(WEB, counts(10**9))]))
    assert line.rates is None


def test_other_counters_have_no_rate() -> None:
    """kubenpu-probe was stopped and started, or counts nothing."""
    before = sample(0, [row(of=counts(5))])
    assert rates(before, sample(2, [row(of=counts(9))], replace(NODE, counting_since=4000))) is None
    assert rates(before, sample(2, [row(of=counts(9))], OFF)) is None


@pytest.mark.parametrize("set_by", [-(10**6), 10**6])
def test_what_was_counted_before_the_clock_was_set_has_no_rate(set_by: int) -> None:
    node = replace(NODE, counting_since=1000 + set_by)
    after = replace(sample(2, [row(of=counts(9, since=1000 + set_by))], node), unix_s=BEGIN_S + 2 + set_by)
    assert rates(sample(0, [row(of=counts(5))]), after) is None


def test_no_time_has_no_rate() -> None:
    assert between(counts(1), counts(2), seconds=0.0) is None


def test_every_row_stays_in_its_order_with_its_device() -> None:
    rows = [row(device="b"), row(device="a"), row(LOST)]
    assert [line.row for line in rate_workloads(sample(0, rows), sample(1, rows))] == rows


def test_devices() -> None:
    def of(at: float, *found: CountsRow | None) -> Sample:
        return replace(sample(at), devices=tuple(device(each, str(n)) for n, each in enumerate(found)))

    before, after = of(0, counts(10), None, counts(1)), of(2, counts(30), counts(7), None)
    assert [each and each.calls for _, each in rate_devices(before, after)] == [10.0, None, None]
    assert [each for _, each in rate_devices(None, after)] == [None, None, None]


NUMBERS = st.integers(0, 2**64 - 1)
COUNTS = st.builds(counts, NUMBERS, NUMBERS, NUMBERS, st.integers(998, 7000), NUMBERS)


@settings(deadline=None)
@given(COUNTS, COUNTS, st.floats(1e-3, 1e6))
def test_a_rate_is_never_negative_nor_more_than_was_counted(
    before: CountsRow, after: CountsRow, seconds: float
) -> None:
    found = between(before, after, seconds)
    if found is not None:
        assert found.submits is not None
        assert found.errors is not None
        assert found.waiting is not None
        assert 0 <= found.submits <= found.calls <= sum(after.calls.values()) / seconds * 1.000001
        assert found.errors >= 0 <= found.waiting


def test_how_calls_end_is_not_known_where_it_is_not_seen() -> None:
    before, after = CountsRow({"alloc": 1}, None, None, 5), CountsRow({"alloc": 3}, None, None, 5)
    found = between(before, after, 2.0)
    assert found is not None
    assert (found.calls, found.errors, found.waiting) == (1.0, None, None)
    assert not found.idle
