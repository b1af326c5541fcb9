# SPDX-License-Identifier: Apache-2.0
"""Device time added up: never down, whole, whoever holds the client; also over restarts and ends of series."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.ledger import clients
from kubenpu.ledger.clients import LOOKS_REMEMBERED, MAX_USES, Accounts, Seen
from kubenpu.ledger.clients_state import dump_rest, restore
from kubenpu.ledger.standing import Standing
from kubenpu.model.clients import COUNT_LIMIT, ClientUse
from kubenpu.model.fdinfo import Fdinfo, Ticks
from kubenpu.model.identity import Owner, OwnerKind

GPU = "0000:03:00.0"
SECOND = 1_000_000_000
PATHS = {cgroup_id: f"/pod{cgroup_id}" for cgroup_id in range(1, 10)}
WEB = Owner(OwnerKind.POD, namespace="shop", pod="web", container="main")


def used(client_id: int, render: int, memory: Mapping[str, int] | None = None) -> Fdinfo:
    return Fdinfo(client_id, {"render": render}, {}, memory or {})


def seen(file: int, fdinfo: Fdinfo | None, *cgroups: int, device: str = GPU) -> Seen:
    return Seen(device, file, cgroups or (1,), fdinfo)


def look(accounts: Accounts, *found: Seen, times: int = 1) -> None:
    for _ in range(times):
        accounts.look(found, PATHS, 5)


def render(accounts: Accounts, cgroup_id: int, device: str = GPU) -> int | None:
    use = accounts.uses.get((cgroup_id, device))
    return use.engine_ns.get("render") if use else None


def shown(accounts: Accounts) -> dict[int, ClientUse]:
    return {use.cgroup_id: use for use in accounts.shown()}


def test_what_was_used_before_the_first_look_counts() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100)))
    assert render(accounts, 1) == 100
    look(accounts, seen(7, used(1, 130)))
    assert render(accounts, 1) == 130


def test_several_clients_of_a_cgroup_add_up() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100, {"vram0": 5})), seen(8, used(2, 10, {"vram0": 6})))
    look(accounts, seen(7, used(1, 101, {"vram0": 5})), seen(8, used(2, 12, {"vram0": 1, "gtt": 2})))
    assert render(accounts, 1) == 113
    assert shown(accounts)[1].memory == {"vram0": 6, "gtt": 2}


def test_a_sum_that_cannot_be_is_absent() -> None:
    accounts = Accounts()
    look(accounts, *(seen(n, used(n, 1, {"vram0": COUNT_LIMIT - 1, "gtt": 1})) for n in (7, 8)))
    assert shown(accounts)[1].memory == {"gtt": 2}


def test_a_value_that_goes_back_is_waited_for() -> None:
    accounts = Accounts()
    for value, total in ((100, 100), (90, 100), (95, 100), (103, 103)):
        look(accounts, seen(7, used(1, value)))
        assert render(accounts, 1) == total


def test_an_engine_may_show_later() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100)))
    look(accounts, seen(7, Fdinfo(1, {"dec": 5}, {}, {})))
    look(accounts, seen(7, Fdinfo(1, {"dec": 6, "render": 101}, {}, {})))
    assert accounts.uses[1, GPU].engine_ns == {"render": 101, "dec": 6}


def test_a_client_that_ends_leaves_what_it_used() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100, {"vram0": 5})))
    look(accounts, times=LOOKS_REMEMBERED)
    assert (render(accounts, 1), shown(accounts)[1].ended, shown(accounts)[1].memory) == (100, 0, {})
    look(accounts)
    assert (render(accounts, 1), shown(accounts)[1].ended) == (100, 1)
    assert not accounts.clients


def test_a_file_on_its_way_through_a_socket_does_not_count_twice() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100), 1))
    look(accounts, times=LOOKS_REMEMBERED)
    look(accounts, seen(7, used(1, 120), 2))
    assert (render(accounts, 1), render(accounts, 2), shown(accounts)[1].ended) == (100, 20, 0)


def test_another_client_in_the_same_place_begins_at_zero() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100)))
    look(accounts, seen(7, used(2, 30)), times=LOOKS_REMEMBERED + 1)
    assert (render(accounts, 1), accounts.uses[1, GPU].ended, len(accounts.clients)) == (130, 1, 1)


def test_a_number_that_is_given_out_again_is_another_client() -> None:
    """By a driver that was loaded again, where the kernel has no name for clients: Linux 6.1."""
    accounts = Accounts()
    one = Seen(GPU, 7, (1,), used(1, 5 * SECOND), 10 * SECOND, 10 * SECOND, SECOND)
    accounts.look([one], PATHS, 10 * SECOND)
    again = Seen(GPU, 8, (2,), used(1, 8 * SECOND), 20 * SECOND, 20 * SECOND, 11 * SECOND)
    accounts.look([again], PATHS, 20 * SECOND)
    assert (render(accounts, 1), render(accounts, 2)) == (5 * SECOND, 8 * SECOND)
    assert {use: shown(accounts)[use].ended for use in (1, 2)} == {1: 1, 2: 0}
    handed_on = Seen(GPU, 8, (3,), used(1, 9 * SECOND), 30 * SECOND, 30 * SECOND, 25 * SECOND)
    accounts.look([handed_on], PATHS, 30 * SECOND)
    assert (render(accounts, 2), render(accounts, 3)) == (8 * SECOND, SECOND)
    assert sum(use.ended for use in accounts.shown()) == 1


def test_descriptors_swapped_between_list_and_reading_charge_nobody_twice() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100)), seen(8, used(2, 10)))
    look(accounts, seen(7, used(2, 11)), seen(8, used(1, 102)))
    look(accounts, seen(7, used(1, 103)), seen(8, used(1, 104)))
    look(accounts, seen(7, used(1, 105)), seen(8, used(2, 12)))
    assert (render(accounts, 1), accounts.uses[1, GPU].ended) == (105 + 12, 0)


def test_the_same_number_on_another_device_is_another_client() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100)), seen(8, used(1, 30), device="0000:04:00.0"))
    assert (render(accounts, 1), render(accounts, 1, "0000:04:00.0")) == (100, 30)


def test_who_shares_a_client_does_not_take_it_over_while_its_owner_has_it() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100), 1))
    look(accounts, seen(7, used(1, 110), 2, 1))
    look(accounts, seen(7, used(1, 125), 2))
    assert (render(accounts, 1), render(accounts, 2)) == (110, 15)


def test_the_oldest_of_several_that_were_there_first() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100), 3, 2))
    assert (render(accounts, 3), render(accounts, 2)) == (100, None)


def test_what_is_not_read_keeps_its_values() -> None:
    """Its device sleeps, or its holder was gone before its cgroup was known."""
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100, {"vram0": 5})))
    look(accounts, seen(7, None), times=20)
    look(accounts, Seen(GPU, 7, (), used(1, 150)), times=20)
    assert (render(accounts, 1), shown(accounts)[1].memory) == (100, {"vram0": 5})
    look(accounts, seen(8, None))
    assert len(accounts.clients) == 1


# ---- one address for two files, while the device sleeps ----


def at_one_address(*cgroups: int, kernel_id: int = 0, fdinfo: Fdinfo | None = None) -> Seen:
    return Seen(GPU, 7, cgroups, fdinfo, end_ns=5, start_ns=3, kernel_id=kernel_id)


def test_another_client_is_told_by_the_name_the_kernel_has_for_it() -> None:
    """That need not be the driver's."""
    accounts = Accounts()
    look(accounts, at_one_address(1, kernel_id=71, fdinfo=used(1, 100, {"vram0": 5})))
    look(accounts, at_one_address(2, kernel_id=72))
    assert (shown(accounts)[1].memory, list(accounts.unread)) == ({}, [(GPU, 7)])
    look(accounts, at_one_address(2, kernel_id=72), times=LOOKS_REMEMBERED)
    assert shown(accounts)[1].ended == 1
    look(accounts, at_one_address(2, kernel_id=72, fdinfo=used(2, 30, {"vram0": 6})))
    assert (render(accounts, 1), render(accounts, 2), shown(accounts)[2].memory) == (100, 30, {"vram0": 6})
    assert not accounts.unread


def test_the_same_client_is_told_by_it_in_whatever_cgroup() -> None:
    accounts = Accounts()
    look(accounts, at_one_address(1, kernel_id=71, fdinfo=used(1, 100, {"vram0": 5})))
    look(accounts, at_one_address(2, kernel_id=71), times=LOOKS_REMEMBERED + 1)
    assert (shown(accounts)[1].memory, accounts.unread) == ({"vram0": 5}, {})
    look(accounts, at_one_address(2, kernel_id=71, fdinfo=used(1, 120)))
    assert (render(accounts, 1), render(accounts, 2), shown(accounts)[1].ended) == (100, 20, 0)


@pytest.mark.parametrize(("client_id", "others", "ended"), [(2, 130, 1), (1, 30, 0)])
def test_without_such_a_name_another_cgroup_may_be_another_client(client_id: int, others: int, ended: int) -> None:
    """Memory of neither is known, and it has not ended: it may have been handed over, and would count twice."""
    accounts = Accounts()
    look(accounts, at_one_address(1, fdinfo=used(1, 100, {"vram0": 5})))
    look(accounts, at_one_address(2), times=2 * LOOKS_REMEMBERED)
    assert (shown(accounts)[1].memory, list(accounts.unread)) == ({}, [(GPU, 7)])
    look(accounts, at_one_address(2, fdinfo=used(client_id, 130)), times=LOOKS_REMEMBERED + 1)
    assert (render(accounts, 1), render(accounts, 2), shown(accounts)[1].ended) == (100, others, ended)


def test_who_ended_is_remembered_up_to_a_bound_and_the_oldest_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(clients, "MAX_REMEMBERED", 3)
    accounts = Accounts()
    for n in range(5):
        look(accounts, seen(n, used(n, 1)))
    look(accounts)
    assert ([key[1] for key in accounts.clients], accounts.uses[1, GPU].ended) == ([2, 3, 4], 2)


def test_a_long_path_has_no_series() -> None:
    accounts, paths = Accounts(), {1: "/" + "x" * 1023, 2: "/" + "x" * 1022 + "\udcff", 3: "/" + "x" * 1022 + "ü"}
    for n in paths:
        accounts.look([seen(n, used(n, 1), n)], paths, 5)
    assert sorted(cgroup_id for cgroup_id, _ in accounts.uses) == [0, 1, 2]
    assert render(accounts, 0) == 1


def test_a_driver_with_both_is_believed_in_nanoseconds() -> None:
    accounts = Accounts()
    both = Fdinfo(1, {"render": 5}, {"render": Ticks(1, 1)}, {})
    look(accounts, seen(7, both), times=3)
    assert render(accounts, 1) == 5
    assert not accounts.clocks


# ---- ends of series ----


def dead(accounts: Accounts, cgroup_id: int, since: float) -> None:
    for (each, _), use in accounts.uses.items():
        if each == cgroup_id:
            use.dead_since = since


def test_a_dead_series_becomes_the_devices() -> None:
    accounts = Accounts()
    look(accounts, seen(7, used(1, 100), 1), seen(8, used(2, 10), 2))
    dead(accounts, 1, 50.0)
    accounts.fold({1: Standing(WEB, True)}, 649.0, 600)
    assert set(shown(accounts)) == {1, 2}
    accounts.fold({1: Standing(WEB, True)}, 650.0, 600)
    assert (set(shown(accounts)), render(accounts, 0)) == ({0, 2}, 100)


def test_a_series_lives_as_long_as_one_of_its_cgroups() -> None:
    """A container that is started again and again needs one entry for all that came before."""
    accounts = Accounts()
    look(accounts, *(seen(n, used(n, 10), n) for n in range(1, 6)))
    names = {n: Standing(WEB, True) for n in range(1, 6)}
    for n in range(1, 5):
        dead(accounts, n, float(n))
    accounts.fold(names, 10_000.0, 600)
    assert {cgroup_id: use.engine_ns["render"] for cgroup_id, use in shown(accounts).items()} == {1: 40, 5: 10}


def test_without_room_time_loses_its_owner_and_nothing_else() -> None:
    accounts = Accounts()
    paths = {n: f"/{n}" for n in range(1, MAX_USES + 10)}
    accounts.look((seen(n, used(n, 1), n) for n in paths), paths, 5)
    assert len(accounts.uses) == MAX_USES + 1
    assert sum(use.engine_ns["render"] for use in accounts.uses.values()) == len(paths)
    for n in list(paths)[:2000]:
        dead(accounts, n, 1.0)
    accounts.fold({}, 2.0, 600)
    assert len(accounts.uses) <= 3 * MAX_USES // 4 + 1
    assert sum(use.engine_ns["render"] for use in accounts.uses.values()) == len(paths)


# ---- any history ----


@dataclass
class Truth:
    """A client as the driver knows it; `gone`: looks in a row without it."""

    cgroups: tuple[int, ...]
    gone: int = 0
    used: int = 0
    highest_seen: int = 0


STEP = st.lists(
    st.tuples(
        st.integers(0, 3),  # which client
        st.integers(0, 50),  # grows by
        st.lists(st.integers(1, 4), min_size=1, max_size=3, unique=True),  # who holds it
        st.sampled_from(["seen", "seen", "asleep", "gone", "reopened"]),
    ),
    max_size=6,
)


@settings(max_examples=60, deadline=None)
@given(st.lists(STEP, max_size=25), st.lists(st.integers(0, 24), max_size=3))
def test_never_down_and_the_sum_of_its_parts(
    steps: Sequence[Sequence[tuple[int, int, list[int], str]]], restarts: list[int]
) -> None:
    accounts = Accounts()
    living: dict[int, Truth] = {}
    client_id: dict[int, int] = {}
    finished, before = 0, 0
    for number, step in enumerate(steps):
        found = []
        for who, growth, cgroups, what in {entry[0]: entry for entry in step}.values():
            known = living.get(who)
            if known and (what == "reopened" or known.gone > LOOKS_REMEMBERED):
                finished += living.pop(who).highest_seen
                client_id[who] = client_id.get(who, 0) + 1
            truth = living.setdefault(who, Truth(tuple(cgroups)))
            truth.gone = truth.gone + 1 if what == "gone" else 0
            truth.used = max(0, truth.used + growth)
            if what in ("seen", "reopened"):
                truth.highest_seen = max(truth.highest_seen, truth.used)
            if what != "gone":
                fdinfo = None if what == "asleep" else used(10 * client_id.get(who, 0) + who, truth.used)
                found.append(seen(who, fdinfo, *cgroups))
        missing = [seen(who, None, *truth.cgroups) for who, truth in living.items() if who not in {e[0] for e in step}]
        accounts.look([*found, *missing], PATHS, number)
        if number in restarts:
            rest = json.loads(json.dumps(dump_rest(accounts)))
            accounts = restore(list(accounts.shown()), rest)
        if number % 7 == 6:
            dead(accounts, 1 + number % 4, float(number))
        accounts.fold({1: Standing(WEB, True), 2: Standing(WEB, True)}, float(number), 5)
        total = sum(use.engine_ns.get("render", 0) for use in accounts.uses.values())
        assert total == finished + sum(truth.highest_seen for truth in living.values())
        assert total >= before
        before = total
