# SPDX-License-Identifier: Apache-2.0
"""The pinned maps from the reading side: totals, cgroup names, rules, device slots, and the merging of cells.

The kernel's maps are the only place where counts live; this module keeps none, so its process may be killed at any
instruction. Needs read and write permission on the pins, no capability. Loads and attaches nothing. Reads and writes
mapped memory: a system call on a map is made once per new cgroup, not per reading, since it holds up kprobe programs.
Not thread-safe: the owner serialises. Owns its fds and mappings until close().
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterable
from contextlib import ExitStack
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.arguments import ArgumentBlocks, used
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, HOOKS, Hook
from kubenpu.kernel.memory import CELL_BYTES, CELL_WORDS, free_cell, read_cell, sum_rows, write_rule
from kubenpu.kernel.nodes import NodeRules
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import KernelError
from kubenpu.model.sample import (
    Cell,
    CellMerge,
    CgroupRecord,
    Counts,
    DeviceRule,
    DeviceTotals,
    KernelSample,
    NodeRule,
)

# From `calls` on: calls errors wait_ns first_ns slot1 work.
_COUNTS = struct.Struct(f"={layout.KINDS}Q{layout.KINDS}QQQI4xQ")
_MAPPED = ("cells", "journal", "alloc", "slots", "rules", "totals", "losses", "majors", "nodes", "tables", "arguments")
PROGRAM_SKIPPED = "program_skipped"
LOSS_REASONS = (*layout.DEVICE_LOSSES, *layout.NODE_LOSSES, PROGRAM_SKIPPED)
_SHAPES = {
    "rules": layout.Rule,
    "arguments": layout.Argument,
    "cells": layout.Cell,
    "totals": layout.Totals,
    "losses": layout.Losses,
    "cgroups": layout.Cgroup,
    "alloc": layout.Alloc,
    "slots": layout.Slot,
    "journal": layout.Journal,
    "majors": layout.Major,
    "nodes": layout.Node,
    "tables": layout.Table,
}


class CounterStore:
    """The pinned maps of one node, open."""

    def __init__(self, directory: Path) -> None:
        """`directory`: the pin directory. Raises KernelError when kubenpu-probe has not made the maps."""
        self._pins = Pins(directory)
        self._maps: dict[str, bpf.Map] = {}
        with ExitStack() as undo:
            undo.callback(self._close_maps)
            self._open_maps()
            self._cpus = bpf.possible_cpus()
            views = {name: memoryview(self._maps[name].memory()) for name in _MAPPED}
            self.bell = bpf.Bell(self._maps["announce"])
            undo.pop_all()
        self._cells, self._journal, self._alloc, self._slots, self._rules, self._totals, self._losses, *_ = (
            views.values()
        )
        self._arguments = ArgumentBlocks(views["arguments"])
        self._node_rules = NodeRules(views["majors"], views["nodes"], views["tables"], self._arguments)
        self._words = self._cells.cast("Q")
        self._known: dict[int, CgroupRecord] = {}
        self.slots_max = self._maps["cells"].shape.max_entries - layout.DEVICE_SLOTS

    def _open_maps(self) -> None:
        try:
            for name in (*_SHAPES, "announce"):
                self._maps[name] = bpf.Map.pinned(self._pins.map(name))
            self._check_shapes()
            by_id = self._pins.map("cgroup_cells_by_id")
            if by_id.exists():
                self._maps["by_id"] = bpf.Map.pinned(by_id)
        except FileNotFoundError as e:
            raise KernelError(
                f"no counters are pinned below {self._pins.root}", "Start kubenpu-probe (kubenpu-probe load)"
            ) from e

    def _check_shapes(self) -> None:
        for name, kind in _SHAPES.items():
            size = self._maps[name].shape.value_size
            if size != ctypes.sizeof(kind):
                raise KernelError(
                    f"the pinned map {name} has values of {size} bytes, {ctypes.sizeof(kind)} expected",
                    "Restart kubenpu-probe: it and kubenpud are of different versions",
                )

    def _close_maps(self) -> None:
        for opened in self._maps.values():
            opened.close()

    def close(self) -> None:
        self.bell.close()
        self._words.release()
        self._node_rules.close()
        self._arguments.close()
        for view in (self._cells, self._journal, self._alloc, self._slots, self._rules, self._totals, self._losses):
            view.release()
        self._close_maps()

    # ---- device slots and rules ----

    def slots(self) -> dict[int, str]:
        """Device slot -> device address, for every slot ever given out since boot."""
        found = {}
        for slot in range(layout.SELFTEST_SLOT):
            entry = layout.Slot.from_buffer_copy(self._slots, slot * ctypes.sizeof(layout.Slot))
            address = bytes(entry.address).split(b"\0", 1)[0].decode(errors="replace")
            if address:
                found[slot] = address
        return found

    def slot_hooks(self) -> dict[int, tuple[str, ...]]:
        """Device slot -> the hooks that a rule was written for since boot."""
        found = {}
        for slot in self.slots():
            (bits,) = struct.unpack_from("=I", self._slots, _hooks_offset(slot))
            found[slot] = tuple(hook.name for bit, hook in enumerate(HOOKS) if bits >> bit & 1)
        return found

    def _mark_slot(self, slot: int, hook: Hook) -> None:
        """Written once: the kernel may set a bit meanwhile."""
        (bits,) = struct.unpack_from("=I", self._slots, _hooks_offset(slot))
        if not bits >> HOOKS.index(hook) & 1:
            struct.pack_into("=I", self._slots, _hooks_offset(slot), bits | 1 << HOOKS.index(hook))

    def assign_slot(self, address: str) -> int | None:
        """The slot of a device, given out at its first appearance; None when all are taken. Hold the slots lock."""
        taken = self.slots()
        for slot, name in taken.items():
            if name == address:
                return slot
        free = next((s for s in range(layout.SELFTEST_SLOT) if s not in taken), None)
        if free is not None:
            entry = layout.Slot(since_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            raw = address.encode()[: layout.Slot.address.size - 1]
            ctypes.memmove(ctypes.byref(entry, layout.Slot.address.offset), raw, len(raw))
            size = ctypes.sizeof(layout.Slot)
            self._slots[free * size : (free + 1) * size] = bytes(entry)
        return free

    def write_rules(self, rules: Iterable[DeviceRule]) -> list[DeviceRule]:
        """Makes exactly these nodes counted and no others. Returns rules whose node the map cannot hold."""
        wanted: dict[int, bytes] = {}
        refused = []
        taken = self._rule_arguments() | self._node_rules.used_arguments()
        for rule in rules:
            index = layout.rule_index(rule.major, rule.minor)
            placed = None if index is None else self._arguments.place(rule.kinds, rule.arguments, {}, taken)
            if index is None or placed is None:
                refused.append(rule)
                continue
            first, kinds = placed
            wanted[index] = struct.pack("=II", rule.slot + 1, first) + kinds
            self._mark_slot(rule.slot, DRM_IOCTL)
        for index in range(layout.RULES - 1):
            write_rule(self._rules, index, wanted.get(index))
        return refused

    def _rule_arguments(self) -> set[int]:
        """Places in the map arguments that a rule refers to now."""
        rules = struct.iter_unpack("=II256s", self._rules[: layout.RULES * ctypes.sizeof(layout.Rule)])
        return {place for slot1, first, kinds in rules if slot1 for place in used(first, kinds)}

    def write_nodes(self, rules: Iterable[NodeRule]) -> list[NodeRule]:
        """The same for character devices outside drm and accel."""
        rules = tuple(rules)
        for rule in rules:
            self._mark_slot(rule.slot, FILE_IOCTL)
        return self._node_rules.write(rules, self._rule_arguments())

    # ---- reading ----

    def read(self) -> KernelSample:
        """One reading of everything. Totals are read before and after the cells, so that they bracket them."""
        before = self._read_totals()
        cells = self._read_cells()
        after = self._read_totals()
        departed = layout.DEVICE_SLOTS
        return KernelSample(
            taken_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME),
            cells=cells,
            cgroups=self._read_cgroups({c.cgroup_id for c in cells if c.index >= departed}),
            before=before,
            after=after,
            losses=self._read_losses(),
            slots_used=sum(1 for c in cells if c.index >= departed),
            slots_max=self.slots_max,
            generation=self._maps["cells"].shape.id,
        )

    def _read_cells(self) -> tuple[Cell, ...]:
        owners = self._words[: (self.slots_max + layout.DEVICE_SLOTS) * CELL_WORDS : CELL_WORDS].tolist()
        found = []
        for index, owner in enumerate(owners):
            if owner == 0 and index >= layout.DEVICE_SLOTS:
                continue
            values = _COUNTS.unpack_from(self._cells, index * CELL_BYTES + 8)
            slot1 = values[-2]
            if slot1 and slot1 != layout.SELFTEST_SLOT + 1:
                k = layout.KINDS
                counts = Counts(values[:k], values[k : 2 * k], values[2 * k], values[-1])
                found.append(Cell(index, owner, slot1 - 1, values[2 * k + 1], counts))
        return tuple(found)

    def _read_totals(self) -> dict[int, DeviceTotals]:
        k = layout.KINDS
        found = {}
        for slot in self.slots():
            sums = sum_rows(self._totals, ctypes.sizeof(layout.Totals), slot * self._cpus, self._cpus)
            work = sums[layout.Totals.work.offset // 8]
            lost = dict(zip(layout.DEVICE_LOSSES, sums[2 * k + 1 :], strict=False))
            found[slot] = DeviceTotals(slot, Counts(tuple(sums[:k]), tuple(sums[k : 2 * k]), sums[2 * k], work), lost)
        return found

    def _read_losses(self) -> dict[str, int]:
        sums = sum_rows(self._losses, ctypes.sizeof(layout.Losses), 0, self._cpus)
        losses = dict(zip(layout.NODE_LOSSES, sums, strict=False))
        losses[PROGRAM_SKIPPED] = 0
        for hook in HOOKS:
            for side in hook.sides:
                losses[PROGRAM_SKIPPED] += self._skipped(hook, side)
        return losses

    def _skipped(self, hook: Hook, side: str) -> int:
        try:
            fd = bpf.open_pin(self._pins.program(hook.name, side))
        except FileNotFoundError:
            return 0
        try:
            return bpf.program_misses(fd)
        finally:
            os.close(fd)

    def _read_cgroups(self, wanted: set[int]) -> dict[int, CgroupRecord]:
        self._known = {i: r for i, r in self._known.items() if i in wanted}
        for cgroup_id in wanted - self._known.keys():
            record = self.read_cgroup(cgroup_id)
            if record is not None:
                self._known[cgroup_id] = record
        return dict(self._known)

    def read_cgroup(self, cgroup_id: int) -> CgroupRecord | None:
        """None: the kernel had no room for it, or is writing it at this moment."""
        raw = self._maps["cgroups"].lookup(struct.pack("=Q", cgroup_id))
        if raw is None:
            return None
        entry = layout.Cgroup.from_buffer_copy(raw)
        if not entry.ready:
            return None
        path = bytes(entry.path)[: entry.path_len].decode(errors="surrogateescape")
        return CgroupRecord(cgroup_id, path or "/", bool(entry.truncated), entry.first_ns)

    def hook_attached(self, name: str) -> bool:
        """Whether all sides of this hook that every kernel has are pinned."""
        return self._pins.attached(next(hook for hook in HOOKS if hook.name == name))

    # ---- merging and freeing ----

    def merge(self, merge: CellMerge) -> None:
        """Adds cell `source` to cell `target` and frees `source`; neither may be written by the kernel any more.

        The new target is noted in the journal first: whoever finds the journal valid finishes the same merge.
        """
        source, target = read_cell(self._cells, merge.source), read_cell(self._cells, merge.target)
        if not source.owner or merge.source < layout.DEVICE_SLOTS or merge.source == merge.target:
            return
        result = layout.Cell(owner=target.owner, slot1=source.slot1, wait_ns=source.wait_ns + target.wait_ns)
        result.work = source.work + target.work
        for kind in range(layout.KINDS):
            result.calls[kind] = source.calls[kind] + target.calls[kind]
            result.errors[kind] = source.errors[kind] + target.errors[kind]
        result.first_ns = min(t for t in (source.first_ns, target.first_ns or source.first_ns))
        entry = layout.Journal(0, source.owner, merge.source, merge.target, result)
        self._journal[8 : ctypes.sizeof(entry)] = bytes(entry)[8:]
        self._set_journal(1)
        self._finish_merge(entry)

    def _finish_merge(self, entry: layout.Journal) -> None:
        start = entry.target * CELL_BYTES
        self._cells[start + 8 : start + CELL_BYTES] = bytes(entry.result)[8:]
        if self._words[entry.source * CELL_WORDS] == entry.source_owner:
            free_cell(self._cells, self._words, entry.source)
        self._set_journal(0)

    def recover(self) -> None:
        """Finishes the merge that a killed process had begun. For the one who has the claim: another may be merging."""
        entry = layout.Journal.from_buffer_copy(self._journal)
        if entry.valid:
            self._finish_merge(entry)

    def _set_journal(self, valid: int) -> None:
        struct.pack_into("=Q", self._journal, 0, valid)

    def reopen_search(self) -> None:
        """Lets the kernel look for free cells again after it found none."""
        struct.pack_into("=I", self._alloc, layout.Alloc.full.offset, 0)

    def forget_cgroups(self, cgroup_ids: Iterable[int]) -> None:
        """Deletes what is known of cgroups that no longer exist and own no cell."""
        for cgroup_id in cgroup_ids:
            key = struct.pack("=Q", cgroup_id)
            self._maps["cgroups"].delete(key)
            if "by_id" in self._maps:
                self._maps["by_id"].delete(key)
            self._known.pop(cgroup_id, None)

    def recorded_cgroups(self) -> set[int]:
        """Ids of all cgroups with a name record or a hash entry."""
        keys = self._maps["cgroups"].keys()
        if "by_id" in self._maps:
            keys += self._maps["by_id"].keys()
        return {struct.unpack("=Q", key)[0] for key in keys}


def _hooks_offset(slot: int) -> int:
    return int(slot * ctypes.sizeof(layout.Slot) + layout.Slot.hooks.offset)
