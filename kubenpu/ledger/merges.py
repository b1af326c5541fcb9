# SPDX-License-Identifier: Apache-2.0
"""Decides which counter cells are folded together, and when a dead workload's series ends.

Owns the decision, not the act: `plan_merges` is pure, the kernel side adds and frees. Three rules:

* compact: dead cells of one owner on one device become one, the oldest (a crash-looping container needs one cell);
* retire: when all workloads of one label set have been dead for the retention time, their cells are added to the
  departed total of the device. A re-created pod of the same name therefore keeps its predecessor's counts as long
  as it lives, and its series never goes down;
* pressure: above 75 % of the cells the longest dead are retired early; they are reported as `early`.

A cgroup whose owner is not final is never folded into another one: the answer may still tell them apart.
A live cell is never touched.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from kubenpu.ledger.standing import UNASKED, Standings, series_owner
from kubenpu.model.sample import Cell, CellMerge, KernelSample

PRESSURE_RATIO = 0.75


@dataclass(frozen=True, slots=True)
class MergePlan:
    """`early`: cgroups whose series end before the retention time because cells run short."""

    merges: tuple[CellMerge, ...]
    early: frozenset[int]


class _Keys(NamedTuple):
    """Which cells may be folded together, and which must leave together."""

    group: Hashable
    series: Hashable


@dataclass(frozen=True, slots=True)
class _Group:
    """Cells that may be folded together: those of one owner, or of one cgroup while its owner is not final.

    `dead_since` is that of the last of its cgroups to die, None while one lives; `series_dead_since` the same over
    all groups with this label set.
    """

    dead: tuple[Cell, ...]
    dead_since: float | None
    series_dead_since: float | None
    compacted: tuple[CellMerge, ...]

    @property
    def retired(self) -> tuple[CellMerge, ...]:
        return tuple(CellMerge(cell.index, cell.device) for cell in self.dead)


def plan_merges(sample: KernelSample, standings: Standings, now: float, retention_s: float) -> MergePlan:
    """What to fold now. Every merge frees one cell; no cell is both source and target."""
    groups = _groups(sample.cells, standings)
    due = [group.series_dead_since is not None and now - group.series_dead_since >= retention_s for group in groups]
    merges = [merge for group, out in zip(groups, due, strict=True) for merge in _fold(group, out)]
    keep = [group for group, out in zip(groups, due, strict=True) if not out and group.dead_since is not None]
    surplus = sample.slots_used - len(merges) - int(sample.slots_max * PRESSURE_RATIO)
    squeezed = _squeeze(keep, surplus)
    replaced = {merge for group in squeezed for merge in group.compacted}
    final = [merge for merge in merges if merge not in replaced]
    final += [merge for group in squeezed for merge in group.retired]
    early = frozenset(cell.cgroup_id for group in squeezed for cell in group.dead)
    return MergePlan(tuple(sorted(final, key=lambda merge: merge.source)), early)


def _fold(group: _Group, retire: bool) -> tuple[CellMerge, ...]:
    return group.retired if retire else group.compacted


def _squeeze(groups: Iterable[_Group], surplus: int) -> Sequence[_Group]:
    """The longest dead groups, as many as it takes to free `surplus` cells; first those whose series ended too."""
    squeezed: list[_Group] = []
    for group in sorted(groups, key=lambda group: (group.series_dead_since is None, group.dead_since)):
        if surplus <= 0:
            break
        squeezed.append(group)
        surplus -= len(group.dead) - len(group.compacted)
    return squeezed


def _groups(cells: Iterable[Cell], standings: Standings) -> list[_Group]:
    members: defaultdict[_Keys, list[Cell]] = defaultdict(list)
    series: defaultdict[Hashable, list[Cell]] = defaultdict(list)
    for cell in cells:
        if cell.cgroup_id:
            keys = _keys(cell, standings)
            members[keys].append(cell)
            series[keys.series].append(cell)
    ended = {key: _dead_since(found, standings) for key, found in series.items()}
    return [_group(found, ended[keys.series], standings) for keys, found in members.items()]


def _group(cells: Sequence[Cell], series_dead_since: float | None, standings: Standings) -> _Group:
    dead = tuple(cell for cell in cells if standings.get(cell.cgroup_id, UNASKED).dead_since is not None)
    return _Group(dead, _dead_since(cells, standings), series_dead_since, _compact(dead))


def _keys(cell: Cell, standings: Standings) -> _Keys:
    standing = standings.get(cell.cgroup_id, UNASKED)
    if not standing.final:
        return _Keys(cell.cgroup_id, cell.cgroup_id)
    return _Keys(replace(standing.owner, container_id=""), series_owner(standing.owner))


def _dead_since(cells: Iterable[Cell], standings: Standings) -> float | None:
    """When the last of these cells' cgroups died; None while one of them lives."""
    latest = 0.0
    for cell in cells:
        since = standings.get(cell.cgroup_id, UNASKED).dead_since
        if since is None:
            return None
        latest = max(latest, since)
    return latest


def _compact(dead: Iterable[Cell]) -> tuple[CellMerge, ...]:
    """Fold dead cells into the oldest of their device, so that the start time of the series stays."""
    by_device: defaultdict[int, list[Cell]] = defaultdict(list)
    for cell in dead:
        by_device[cell.device].append(cell)
    merges: list[CellMerge] = []
    for found in by_device.values():
        oldest = min(found, key=lambda cell: (cell.first_ns, cell.index))
        merges += [CellMerge(cell.index, oldest.index) for cell in found if cell is not oldest]
    return tuple(merges)
