# SPDX-License-Identifier: Apache-2.0
"""Which cells are folded and retired: the three rules by example, and what no plan may ever do, by property."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.ledger.merges import PRESSURE_RATIO, plan_merges
from kubenpu.ledger.standing import Standing
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import ZERO, Cell, CellMerge, KernelSample

WEB = Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u1")
WEB_AGAIN = Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u2")
DB = Owner(OwnerKind.POD, namespace="shop", pod="db-0", container="main", pod_uid="u3")
SSH = Owner(OwnerKind.HOST, unit="ssh.service")


def sample_of(*cells: Cell, slots_max: int = 1000) -> KernelSample:
    departed = (Cell(0, 0, 0, 0, ZERO), Cell(1, 0, 1, 0, ZERO))
    return KernelSample(0, departed + cells, {}, {}, {}, {}, len(cells), slots_max)


def cell(index: int, cgroup_id: int, device: int = 0, first_ns: int | None = None) -> Cell:
    return Cell(index, cgroup_id, device, index if first_ns is None else first_ns, ZERO)


def dead(owner: Owner, since: float) -> Standing:
    return Standing(owner, final=True, dead_since=since)


def test_restarts_of_one_container_share_the_oldest_dead_cell() -> None:
    sample = sample_of(cell(10, 100, first_ns=7), cell(11, 101, first_ns=5), cell(12, 102))
    standings = {100: dead(WEB, 1), 101: dead(WEB, 2), 102: Standing(WEB, final=True)}
    assert plan_merges(sample, standings, now=3, retention_s=600).merges == (CellMerge(10, 11),)


def test_a_crash_loop_needs_one_cell_although_every_restart_has_a_new_id() -> None:
    sample = sample_of(cell(10, 100), cell(11, 101), cell(12, 102), cell(13, 103))
    standings = {100 + n: dead(replace(WEB, container_id=f"id{n}"), n + 1) for n in range(3)}
    standings[103] = Standing(replace(WEB, container_id="id3"), final=True)
    assert plan_merges(sample, standings, now=5, retention_s=600).merges == (CellMerge(11, 10), CellMerge(12, 10))


def test_devices_and_owners_are_never_mixed() -> None:
    sample = sample_of(cell(10, 100, device=0), cell(11, 101, device=1), cell(12, 102, device=0))
    standings = {100: dead(WEB, 1), 101: dead(WEB, 1), 102: dead(DB, 1)}
    assert plan_merges(sample, standings, now=3, retention_s=600).merges == ()


def test_retention_ends_a_series_exactly_on_time() -> None:
    sample = sample_of(cell(10, 100, device=1), cell(11, 101, device=1))
    standings = {100: dead(WEB, 1), 101: dead(WEB, 5)}
    assert plan_merges(sample, standings, now=604.9, retention_s=600).merges == (CellMerge(11, 10),)
    assert plan_merges(sample, standings, now=605, retention_s=600).merges == (CellMerge(10, 1), CellMerge(11, 1))


def test_a_live_cgroup_keeps_its_owners_dead_cells() -> None:
    sample = sample_of(cell(10, 100), cell(11, 101))
    standings = {100: dead(SSH, 1), 101: Standing(SSH, final=True)}
    assert plan_merges(sample, standings, now=9999, retention_s=600).merges == ()


def test_a_recreated_pod_keeps_its_predecessors_counts() -> None:
    sample = sample_of(cell(10, 100), cell(11, 101))
    alive = {100: dead(WEB, 1), 101: Standing(WEB_AGAIN, final=True)}
    assert plan_merges(sample, alive, now=9999, retention_s=600).merges == ()
    gone = {100: dead(WEB, 1), 101: dead(WEB_AGAIN, 9000)}
    assert plan_merges(sample, gone, now=9999, retention_s=600).merges == (CellMerge(10, 0), CellMerge(11, 0))


def test_cgroups_without_a_final_owner_are_not_folded_but_leave_on_time() -> None:
    sample = sample_of(cell(10, 100), cell(11, 101), cell(12, 102))
    standings = {100: Standing(WEB, False, 1), 101: Standing(WEB, False, 2)}
    assert plan_merges(sample, standings, now=3, retention_s=600).merges == ()
    assert plan_merges(sample, standings, now=601, retention_s=600).merges == (CellMerge(10, 0),)


def test_pressure_retires_the_longest_dead_and_says_so() -> None:
    sample = sample_of(*(cell(10 + n, 100 + n) for n in range(10)), slots_max=10)
    owners = [Owner(OwnerKind.POD, pod=f"p{n}") for n in range(10)]
    standings = {100 + n: dead(owners[n], since=50 - n) for n in range(5)}
    standings |= {100 + n: Standing(owners[n], final=True) for n in range(5, 10)}
    plan = plan_merges(sample, standings, now=60, retention_s=600)
    assert plan.merges == (CellMerge(12, 0), CellMerge(13, 0), CellMerge(14, 0))
    assert plan.early == {102, 103, 104}


def test_pressure_spares_the_series_of_a_live_pod_as_long_as_it_can() -> None:
    sample = sample_of(cell(10, 100), cell(11, 101), cell(12, 102), slots_max=3)
    standings = {100: dead(WEB, 1), 101: Standing(WEB_AGAIN, final=True), 102: dead(DB, 50)}
    plan = plan_merges(sample, standings, now=60, retention_s=600)
    assert plan.merges == (CellMerge(12, 0),)


def test_compaction_is_tried_before_anything_is_retired_early() -> None:
    sample = sample_of(*(cell(10 + n, 100 + n) for n in range(4)), slots_max=4)
    standings = {100 + n: dead(WEB, 1) for n in range(4)}
    plan = plan_merges(sample, standings, now=2, retention_s=600)
    assert len(plan.merges) == 3
    assert plan.early == frozenset()


OWNERS = (WEB, WEB_AGAIN, DB, SSH, Owner(OwnerKind.UNKNOWN, container_id="c"))
STANDINGS = st.builds(
    Standing, st.sampled_from(OWNERS), st.booleans(), st.one_of(st.none(), st.floats(0, 1000, allow_nan=False))
)


@settings(deadline=None)
@given(
    places=st.lists(st.tuples(st.integers(1, 30), st.integers(0, 1)), unique=True, max_size=40),
    standings=st.dictionaries(st.integers(1, 30), STANDINGS),
    slots_max=st.integers(1, 100),
)
def test_no_plan_loses_a_cell(places: list[tuple[int, int]], standings: dict[int, Standing], slots_max: int) -> None:
    cells = {n: cell(n, cgroup, device, cgroup % 7) for n, (cgroup, device) in enumerate(places, start=2)}
    plan = plan_merges(sample_of(*cells.values(), slots_max=slots_max), standings, now=1000, retention_s=600)
    sources = [merge.source for merge in plan.merges]
    assert len(sources) == len(set(sources))
    assert not set(sources) & {merge.target for merge in plan.merges}
    for merge in plan.merges:
        source = cells[merge.source]
        assert standings[source.cgroup_id].dead_since is not None
        if merge.target >= 2:
            target = cells[merge.target]
            assert standings[target.cgroup_id].dead_since is not None
            assert standings[source.cgroup_id].final
            assert standings[source.cgroup_id].owner == standings[target.cgroup_id].owner
            assert (target.device, target.first_ns) <= (source.device, source.first_ns)
            assert target.device == source.device
        else:
            assert merge.target == source.device
    if plan.early:
        assert len(cells) - len(sources) >= int(slots_max * PRESSURE_RATIO) - 1
