# SPDX-License-Identifier: Apache-2.0
"""What the node frees when a workload is gone, and what it must not: over pins and a cgroup tree that are not there."""

from __future__ import annotations

from kubenpu.model.sample import CellMerge, CgroupRecord
from kubenpu.service.node import Node
from tests.fakes.node_world import CONFIRMED, POD_PATH, World


def test_a_dead_pod_is_folded_after_the_retention_and_forgotten(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: CONFIRMED
    cell = world.work(world.cgroup())
    node.resolve()
    node.tidy()
    assert node.view().usage[0].alive
    (world.mount / POD_PATH[1:]).rmdir()
    node.tidy()
    assert not node.view().usage[0].alive
    world.now += world.settings.retention_seconds - 1
    node.tidy()
    assert world.store.merges == []
    assert world.store.forgotten == []
    world.now += 1
    node.tidy()
    assert world.store.merges == [CellMerge(cell.index, 0)]
    node.tidy()
    assert world.store.forgotten == [cell.cgroup_id]
    assert world.store.searches == 5


def test_who_still_lives_or_owns_a_cell_is_not_forgotten(world: World, node: Node) -> None:
    gone, idle, torn = world.work(70), world.cgroup("/system.slice/idle.service"), 72
    world.store.records[idle] = CgroupRecord(idle, "/system.slice/idle.service", False, 0)
    world.store.records[torn] = CgroupRecord(torn, "/gone", False, 0)
    busy = world.work(world.cgroup("/busy"), "/busy")
    node.tidy()
    world.now += world.settings.retention_seconds
    node.tidy()
    assert world.store.merges == [CellMerge(gone.index, 0)]
    node.tidy()
    assert sorted(world.store.forgotten) == [70, torn]
    assert world.store.cells == [busy]


def test_who_is_about_to_get_a_cell_is_not_forgotten(world: World, node: Node) -> None:
    """The kernel writes a cgroup's record first: it may be there, unfinished, at a look."""
    gone = world.work(70)
    node.tidy()
    world.now += world.settings.retention_seconds
    early = CgroupRecord(71, POD_PATH, True, 0)
    world.store.records[71] = early
    node.tidy()
    assert world.store.merges == [CellMerge(gone.index, 0)]
    world.work(71, POD_PATH, truncated=True)
    node.tidy()
    assert world.store.forgotten == [70]
    node.tidy()
    assert world.store.forgotten == [70]


def test_a_cgroup_made_anew_under_the_same_name_is_another_one(world: World, node: Node) -> None:
    world.cgroup()
    world.work(70)
    node.tidy()
    assert not node.view().usage[0].alive


def test_a_cgroup_with_a_path_cut_short_lives_as_long_as_its_id_is_in_the_tree(world: World, node: Node) -> None:
    """Its recorded path leads to an ancestor, which proves nothing."""
    world.work(world.cgroup(f"{POD_PATH}/deep"), POD_PATH, truncated=True)
    node.tidy()
    assert node.view().usage[0].alive
    (world.mount / POD_PATH[1:] / "deep").rmdir()
    node.tidy()
    assert not node.view().usage[0].alive
