# SPDX-License-Identifier: Apache-2.0
"""What the ledger shows: sums, names that arrive late, devices that leave, the conservation check."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest

from kubenpu.ledger.ledger import Ledger, NodeFacts
from kubenpu.ledger.names import read_names, write_names
from kubenpu.ledger.standing import Standing
from kubenpu.ledger.totals import imbalance
from kubenpu.model.device import Device
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind, Resolution
from kubenpu.model.sample import ZERO, Cell, Counts, DeviceTotals, KernelSample
from kubenpu.model.view import View

POD = Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u1")
CLAIM = Owner(OwnerKind.UNKNOWN, pod_uid="u1", container_id="c1")
FACTS = NodeFacts("1", "n", False, counting_since=1000.0)
ADDRESSES = {0: "0000:00:02.0"}


def counts(submit: int, other: int = 0) -> Counts:
    return Counts((submit, 0, 0, 0, 0, 0, other), (0,) * 7, 5)


def totals(counted: Counts, lost: Mapping[str, int] | None = None) -> dict[int, DeviceTotals]:
    return {0: DeviceTotals(0, counted, lost or {})}


def sample(
    cells: Iterable[Cell], before: dict[int, DeviceTotals] | None = None, after: dict[int, DeviceTotals] | None = None
) -> KernelSample:
    cells = tuple(cells)
    whole = totals(sum((cell.counts for cell in cells), ZERO))
    return KernelSample(
        taken_ns=10**9,
        cells=cells,
        cgroups={},
        before=whole if before is None else before,
        after=whole if after is None else after,
        losses={"cgroups-full": 0, "no-device": 2},
        slots_used=len(cells),
        slots_max=64,
    )


def ledger(**known: Owner) -> Ledger:
    fresh = Ledger(retention_s=600, boot_unix_s=1000.0)
    for name, owner in known.items():
        fresh.set_resolution(int(name[1:]), Resolution(owner, True, "test"))
    return fresh


def show(book: Ledger, reading: KernelSample | None, facts: NodeFacts = FACTS) -> View:
    return book.view(reading, ADDRESSES, facts)


def test_restarts_of_a_container_are_one_usage_since_the_first() -> None:
    reading = sample([Cell(8, 70, 0, 4 * 10**9, counts(3)), Cell(9, 71, 0, 2 * 10**9, counts(4))])
    book = ledger(c70=POD, c71=POD)
    book.mark_dead(70, 1.0)
    (usage,) = show(book, reading).usage
    assert (usage.owner, usage.counts.calls[0], usage.counts.wait_ns, usage.since) == (POD, 7, 10, 1002.0)
    assert usage.alive
    book.mark_dead(71, 1.0)
    assert not show(book, reading).usage[0].alive


def test_a_guess_is_shown_as_unknown_until_it_is_final() -> None:
    book = ledger()
    reading = sample([Cell(8, 70, 0, 0, counts(3))])
    assert show(book, reading).usage[0].owner == Owner(OwnerKind.UNKNOWN)
    book.set_resolution(70, Resolution(dataclasses.replace(POD, container_id="c1"), False, "not yet"), retry_at=5)
    assert show(book, reading).usage[0].owner == CLAIM
    assert book.to_resolve(reading, now=4.9) == ()
    assert book.next_retry_s(reading, now=3) == 2
    assert book.to_resolve(reading, now=5) == (70,)
    book.set_resolution(70, Resolution(POD, True, "cri"))
    assert book.to_resolve(reading, now=99) == ()
    assert book.next_retry_s(reading, now=3) is None
    assert show(book, reading).usage[0].owner == POD


def test_a_final_answer_stays() -> None:
    book = ledger(c70=POD)
    book.set_resolution(70, Resolution(CLAIM, True, "someone else"))
    assert show(book, sample([Cell(8, 70, 0, 0, counts(3))])).usage[0].owner == POD


def test_who_lives_may_still_get_a_name_and_who_is_gone_may_not() -> None:
    """What is gone is folded with others that nobody knew: a name would take their calls, too."""
    book, reading = ledger(), sample([Cell(8, 70, 0, 0, counts(3)), Cell(9, 71, 0, 0, counts(4))])
    unknown = Resolution(CLAIM, True, "not known for long")
    book.mark_dead(71, 1.0)
    for cgroup_id, final in ((70, False), (71, True)):
        assert book.set_resolution(cgroup_id, unknown, retry_at=5) is final
    assert book.to_resolve(reading, now=4) == ()
    book.ask_again()
    assert book.to_resolve(reading, now=4) == (70,)
    assert list(book.names()) == [71]
    for cgroup_id in (70, 71):
        assert book.set_resolution(cgroup_id, Resolution(POD, True, "cri"))
    shown = {usage.owner: usage.counts.calls[0] for usage in show(book, reading).usage}
    assert shown == {POD: 3, CLAIM: 4}


def test_the_departed_total_is_not_a_usage() -> None:
    reading = sample([Cell(0, 0, 0, 0, counts(5)), Cell(8, 70, 0, 0, counts(3))])
    view = show(ledger(c70=POD), reading)
    assert [usage.counts.calls[0] for usage in view.usage] == [3]
    assert view.device_usage[0].departed.calls[0] == 5
    assert view.device_usage[0].counts.calls[0] == 8


def test_two_slots_of_one_device_are_one_device() -> None:
    both = {slot: DeviceTotals(slot, counts(2 + slot), {"full": 1}) for slot in (0, 1)}
    reading = sample([Cell(8, 70, 0, 0, counts(1)), Cell(9, 70, 1, 0, counts(2))], both, both)
    view = ledger(c70=POD).view(reading, {0: "a", 1: "a"}, FACTS)
    (device,) = view.device_usage
    assert (device.counts.calls[0], dict(device.lost), device.imbalance) == (5, {"full": 2}, 0)
    assert [usage.counts.calls[0] for usage in view.usage] == [3]
    assert view.dropped == {"cgroups-full": 0, "no-device": 2, "full": 2}


def test_counts_of_an_unnamed_slot_are_kept() -> None:
    view = ledger().view(sample([Cell(8, 70, 0, 0, counts(1))]), {}, FACTS)
    assert [usage.device for usage in view.usage] == ["slot-0"]
    assert [device.device for device in view.device_usage] == ["slot-0"]


def test_an_unplugged_device_keeps_its_vendor_label() -> None:
    device = Device("0000:00:02.0", "drm", "i915", "i915", None, None, (), "/x")
    book, reading = ledger(c70=POD), sample([Cell(8, 70, 0, 0, counts(1))])
    assert show(book, reading).usage[0].vendor is None
    assert show(book, reading, dataclasses.replace(FACTS, devices=(device,))).usage[0].vendor == "i915"
    assert show(book, reading).usage[0].vendor == "i915"


def test_a_device_stays_auxiliary_when_it_goes_and_until_it_is_another() -> None:
    device = Device("0000:00:02.0", "char", None, "amdkfd", None, None, (), "/x", auxiliary=True)
    book, reading = ledger(c70=POD), sample([Cell(8, 70, 0, 0, counts(1))])
    assert not show(book, reading).device_usage[0].auxiliary
    assert show(book, reading, dataclasses.replace(FACTS, devices=(device,))).device_usage[0].auxiliary
    assert show(book, reading).device_usage[0].auxiliary
    other = dataclasses.replace(device, auxiliary=False)
    assert not show(book, reading, dataclasses.replace(FACTS, devices=(other,))).device_usage[0].auxiliary


def test_without_a_sample_there_is_no_count() -> None:
    view = show(ledger(), None)
    assert (view.usage, view.device_usage, view.dropped, view.slots_max) == ((), (), {}, 0)


@pytest.mark.parametrize(
    ("before", "cells", "after", "lost", "expected"),
    [
        (10, 10, 10, (0, 0), 0),
        (10, 12, 15, (0, 0), 0),
        (10, 9, 15, (0, 0), 1),
        (10, 16, 15, (0, 0), -1),
        (10, 7, 10, (3, 3), 0),
        (10, 8, 10, (3, 3), -1),
        (10, 6, 10, (3, 3), 1),
        (10, 8, 12, (1, 4), 0),
    ],
)
def test_imbalance(before: int, cells: int, after: int, lost: tuple[int, int], expected: int) -> None:
    reading = sample(
        [Cell(8, 70, 0, 0, counts(cells))],
        totals(counts(before), {"full": lost[0]}),
        totals(counts(after), {"full": lost[1]}),
    )
    assert imbalance(reading, 0, counts(cells)) == expected


def test_imbalance_finds_calls_booked_under_the_wrong_kind() -> None:
    reading = sample([Cell(8, 70, 0, 0, counts(5, 5))], totals(counts(6, 4)), totals(counts(6, 4)))
    assert abs(show(ledger(), reading).device_usage[0].imbalance) == 1


def test_imbalance_of_a_device_that_came_while_the_sample_was_read() -> None:
    reading = sample([Cell(8, 70, 0, 0, counts(5))], before={}, after=totals(counts(6)))
    assert show(ledger(), reading).device_usage[0].imbalance == 0


def test_a_cgroup_is_forgotten_only_when_two_samples_lack_it() -> None:
    book, empty, full = ledger(c70=POD), sample([]), sample([Cell(8, 70, 0, 0, counts(3))])
    book.mark_dead(70, 3.0)
    book.plan_merges(empty, 4)
    book.plan_merges(full, 5)
    assert book.alive(full) == ()
    book.plan_merges(empty, 6)
    assert 70 in book.names()
    book.plan_merges(empty, 7)
    assert book.names() == {}
    assert book.to_resolve(full, 8) == book.alive(full) == (70,)


def test_early_retirement_is_counted_once_per_cgroup() -> None:
    reading = dataclasses.replace(sample([Cell(8, 70, 0, 0, counts(3))]), slots_used=60, slots_max=64)
    book = ledger(c70=POD)
    book.mark_dead(70, 1)
    assert book.plan_merges(reading, 2) == book.plan_merges(reading, 3) != ()
    assert show(book, reading).retired_early == 1


def test_names_survive_a_restart(tmp_path: Path) -> None:
    book = ledger(c70=POD, c71=Owner(OwnerKind.HOST, unit='"\udcff\n\x00.service'))
    book.mark_dead(70, 2.5)
    write_names(tmp_path / "names.json", "boot-1", book.names())
    after = Ledger(retention_s=600, boot_unix_s=1000.0)
    after.adopt_names(read_names(tmp_path / "names.json", "boot-1"))
    assert after.names() == book.names()
    assert after.names()[70] == Standing(POD, True, 2.5)
    assert read_names(tmp_path / "names.json", "boot-2") == {}
    assert read_names(tmp_path / "absent", "boot-1") == {}
    assert [path.name for path in tmp_path.iterdir()] == ["names.json"]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "null",
        "\xff",
        '{"format": 2}',
        '{"format": 2, "boot_id": "b", "names": [[1]]}',
        "{" * 50,
        "[" * 100_000,
    ]
    + [f'{{"format": 2, "boot_id": "b", "names": [{row}]}}' for row in ('["1", null, "pod"]', '[1, null, "x", 1]')]
    + [
        f'{{"format": 2, "boot_id": "b", "names": [[1, null, {kinds}, "", "", "", "", "", "", ""]]}}'
        for kinds in ('"god", ""', '"host", "god"', '"host", 7')
    ]
    + ['{"format": 2, "boot_id": "b", "names": [[1, null, "pod", "", "", "", "", "", "", 7]]}'],
    ids=lambda text: repr(text[:80]),
)
def test_a_damaged_name_file_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "names.json").write_text(text, encoding="latin-1")
    with pytest.raises(SourceError, match="cannot use"):
        read_names(tmp_path / "names.json", "b")


def test_an_unwritable_name_file_says_what_is_lost(tmp_path: Path) -> None:
    with pytest.raises(SourceError, match="do not survive"):
        write_names(tmp_path / "no" / "names.json", "b", {})
