# SPDX-License-Identifier: Apache-2.0
"""The pinned maps from the reading side: totals, cgroup names, rules, device slots, and the merging of cells.

The kernel's maps are the only place where counts live; this module keeps none, so its process may be killed at any
instruction. Needs read and write permission on the pins, no capability. Loads and attaches nothing. Reads and writes
mapped memory: a bpf(2) call on a map is made once per new cgroup, not per reading, since it holds up kprobe programs.
What is large or seldom needed is mapped piece by piece and for that moment.
Not thread-safe: the owner serialises. Owns its fds and mappings until close().
"""

from __future__ import annotations

import ctypes
import os
import struct
import time
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.arguments import ArgumentBlocks, used
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, HOOKS, Hook
from kubenpu.kernel.memory import CELL_BYTES, CELL_WORDS, copy_cell, free_cell, sum_rows, write_rule
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
_FOR_RULES = ("rules", "arguments", "majors", "nodes", "tables")
_CELLS_AT_ONCE = 1024
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
            self._journal = undo.enter_context(self._maps["journal"].memory())
            self._alloc = undo.enter_context(self._maps["alloc"].memory())
            self._slots = undo.enter_context(self._maps["slots"].memory())
            self._losses = undo.enter_context(self._maps["losses"].memory())
            self.bell = bpf.Bell(self._maps["announce"])
            undo.callback(self.bell.close)
            self._opened = undo.pop_all()
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
        self._opened.close()

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
        with self._for_rules() as (memory, arguments, nodes):
            taken = _arguments_of(memory) | nodes.used_arguments()
            for rule in rules:
                index = layout.rule_index(rule.major, rule.minor)
                placed = None if index is None else arguments.place(rule.kinds, rule.arguments, {}, taken)
                if index is None or placed is None:
                    refused.append(rule)
                    continue
                first, kinds = placed
                wanted[index] = struct.pack("=II", rule.slot + 1, first) + kinds
                self._mark_slot(rule.slot, DRM_IOCTL)
            for index in range(layout.RULES - 1):
                write_rule(memory, index, wanted.get(index))
        return refused

    def write_nodes(self, rules: Iterable[NodeRule]) -> list[NodeRule]:
        """The same for character devices outside drm and accel, and for calls that drivers answer before drm_ioctl."""
        rules = tuple(rules)
        for slot in {rule.slot for rule in rules if rule.slot is not None}:
            self._mark_slot(slot, FILE_IOCTL)
        with self._for_rules() as (memory, _, nodes):
            return nodes.write(rules, _arguments_of(memory))

    @contextmanager
    def _for_rules(self) -> Iterator[tuple[memoryview, ArgumentBlocks, NodeRules]]:
        with ExitStack() as mapped:
            views = (mapped.enter_context(self._maps[name].memory()) for name in _FOR_RULES)
            rules, blocks, majors, nodes, tables = views
            arguments = ArgumentBlocks(blocks)
            yield rules, arguments, NodeRules(majors, nodes, tables, arguments)

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
        found: list[Cell] = []
        end = self.slots_max + layout.DEVICE_SLOTS
        for first in range(0, end, _CELLS_AT_ONCE):
            with self._maps["cells"].memory(first, min(_CELLS_AT_ONCE, end - first)) as memory:
                found += _used_cells(memory, first)
        return tuple(found)

    def _cell(self, index: int) -> AbstractContextManager[memoryview]:
        return self._maps["cells"].memory(index, 1)

    def _read_totals(self) -> dict[int, DeviceTotals]:
        k = layout.KINDS
        found = {}
        for slot in self.slots():
            with self._maps["totals"].memory(slot * self._cpus, self._cpus) as memory:
                sums = sum_rows(memory, ctypes.sizeof(layout.Totals))
            work = sums[layout.Totals.work.offset // 8]
            lost = dict(zip(layout.DEVICE_LOSSES, sums[2 * k + 1 :], strict=False))
            found[slot] = DeviceTotals(slot, Counts(tuple(sums[:k]), tuple(sums[k : 2 * k]), sums[2 * k], work), lost)
        return found

    def _read_losses(self) -> dict[str, int]:
        sums = sum_rows(self._losses, ctypes.sizeof(layout.Losses))
        losses = {reason: _still_lost(lost) for reason, lost in zip(layout.NODE_LOSSES, sums, strict=False)}
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
        if merge.source < layout.DEVICE_SLOTS or merge.source == merge.target:
            return
        with self._cell(merge.source) as source, self._cell(merge.target) as target:
            old, new = copy_cell(source), copy_cell(target)
            if not old.owner:
                return
            entry = layout.Journal(0, old.owner, merge.source, merge.target, _sum(old, new))
            self._journal[8 : ctypes.sizeof(entry)] = bytes(entry)[8:]
            self._set_journal(1)
            self._finish_merge(entry, source, target)

    def recover(self) -> None:
        """Finishes the merge that a killed process had begun. For the one who has the claim: another may be merging."""
        entry = layout.Journal.from_buffer_copy(self._journal)
        if entry.valid:
            with self._cell(entry.source) as source, self._cell(entry.target) as target:
                self._finish_merge(entry, source, target)

    def _finish_merge(self, entry: layout.Journal, source: memoryview, target: memoryview) -> None:
        target[8:] = bytes(entry.result)[8:]
        if copy_cell(source).owner == entry.source_owner:
            free_cell(source)
        self._set_journal(0)

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


def _used_cells(memory: memoryview, first: int) -> Iterator[Cell]:
    """Those of `memory` that count for somebody; the first one has the index `first`."""
    for index, owner in enumerate(memory.cast("Q")[::CELL_WORDS].tolist(), first):
        if owner == 0 and index >= layout.DEVICE_SLOTS:
            continue
        values = _COUNTS.unpack_from(memory, (index - first) * CELL_BYTES + 8)
        slot1 = values[-2]
        if slot1 and slot1 != layout.SELFTEST_SLOT + 1:
            k = layout.KINDS
            counts = Counts(values[:k], values[k : 2 * k], values[2 * k], values[-1])
            yield Cell(index, owner, slot1 - 1, values[2 * k + 1], counts)


def _still_lost(total: int) -> int:
    """From a sum over CPUs, modulo 2^64: what one CPU lost another one may have found again. A reading in between may
    see only the latter, which is no loss."""
    total %= 1 << 64
    return total if total < 1 << 63 else 0


def _sum(source: layout.Cell, target: layout.Cell) -> layout.Cell:
    result = layout.Cell(owner=target.owner, slot1=source.slot1, wait_ns=source.wait_ns + target.wait_ns)
    result.work = source.work + target.work
    for kind in range(layout.KINDS):
        result.calls[kind] = source.calls[kind] + target.calls[kind]
        result.errors[kind] = source.errors[kind] + target.errors[kind]
    result.first_ns = min(source.first_ns, target.first_ns or source.first_ns)
    return result


def _arguments_of(rules: memoryview) -> set[int]:
    """Places in the map arguments that a rule refers to now."""
    found = struct.iter_unpack("=II256s", rules)
    return {place for slot1, first, kinds in found if slot1 for place in used(first, kinds)}


def _hooks_offset(slot: int) -> int:
    return int(slot * ctypes.sizeof(layout.Slot) + layout.Slot.hooks.offset)
