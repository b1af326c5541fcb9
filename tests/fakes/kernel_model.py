# SPDX-License-Identifier: Apache-2.0
"""The kernel's counter array as a model: cells, independent totals and losses, for tests that drive it at random."""

from __future__ import annotations

from dataclasses import replace

from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import ZERO, Cell, CellMerge, Counts, DeviceTotals, KernelSample

DEVICES = {0: "0000:00:02.0", 1: "0000:00:03.0"}
SLOTS_MAX = 16
OWNERS = (
    Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u1"),
    Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u2"),
    Owner(OwnerKind.POD, namespace="shop", pod="db-0", container="main", pod_uid="u3"),
    Owner(OwnerKind.HOST, unit="ssh.service"),
    Owner(OwnerKind.UNKNOWN, pod_uid="u4", container_id="c4"),
)


class KernelModel:
    """Cells, independent totals and losses, as the BPF program and the merging code keep them."""

    def __init__(self) -> None:
        self.cells = {slot: Cell(slot, 0, slot, 0, ZERO) for slot in DEVICES}
        self.totals = dict.fromkeys(DEVICES, ZERO)
        self.lost = dict.fromkeys(DEVICES, 0)

    def call(self, cgroup_id: int, device: int, kind: int, now_ns: int) -> None:
        calls = tuple(int(kind == k) for k in range(7))
        once = Counts(calls, (0,) * 7, 3 if kind == 4 else 0)
        self.totals[device] += once
        for cell in self.cells.values():
            if (cell.cgroup_id, cell.device) == (cgroup_id, device):
                self.cells[cell.index] = replace(cell, counts=cell.counts + once)
                return
        free = set(range(len(DEVICES), SLOTS_MAX)) - self.cells.keys()
        if not free:
            self.lost[device] += 1
            return
        self.cells[min(free)] = Cell(min(free), cgroup_id, device, now_ns, once)

    def merge(self, merge: CellMerge) -> None:
        source, target = self.cells.pop(merge.source), self.cells[merge.target]
        assert source.device == target.device
        self.cells[target.index] = replace(target, counts=target.counts + source.counts)

    def sample(self, now_ns: int) -> KernelSample:
        totals = {slot: DeviceTotals(slot, self.totals[slot], {"full": self.lost[slot]}) for slot in DEVICES}
        return KernelSample(
            now_ns, tuple(self.cells.values()), {}, totals, totals, {}, len(self.cells) - len(DEVICES), SLOTS_MAX
        )
