# SPDX-License-Identifier: Apache-2.0
"""Which character devices are accelerators and what their commands are for: the maps majors, nodes and tables.

Works on mapped memory while the kernel reads it: a chain of tables is complete before a node refers to it, a node
before its major, and what is taken away goes in the opposite order. What no node refers to is free. Kept nowhere else,
so whoever writes next finds what there is. The owner serialises, and gives the views.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Mapping

from kubenpu.kernel import layout
from kubenpu.kernel.arguments import ArgumentBlocks, used
from kubenpu.model.sample import NodeRule

_TABLE_BYTES = ctypes.sizeof(layout.Table)
_WHOLE = 1 << 32
_NO_SLOT1 = layout.DEVICE_SLOTS + 1  # beyond the last slot: the kernel declares the calls lost
_RESERVED_MAJOR, _RESERVED_BLOCK = layout.MAJORS - 1, layout.BLOCKS - 1  # of the self-test

Nodes = dict[tuple[int, int], int]  # (major, minor) -> the word of knpu_node


class NodeRules:
    """The three maps of one node. `arguments` are shared with the rules of drm and accel, and the owner's."""

    def __init__(self, majors: memoryview, nodes: memoryview, tables: memoryview, arguments: ArgumentBlocks) -> None:
        self._arguments = arguments
        self._majors, self._nodes, self._tables = majors.cast("Q"), nodes.cast("Q"), tables

    def write(self, rules: Iterable[NodeRule], arguments_of_others: set[int]) -> list[NodeRule]:
        """Makes exactly these nodes counted and no others. Returns rules that the maps cannot hold."""
        blocks = self._blocks()
        taken = self._used_tables(blocks)
        arguments = arguments_of_others | self._arguments_of(taken)
        wanted: Nodes = {}
        whole: dict[int, bool] = {}
        refused = []
        for rule in rules:
            block1 = self._block(rule.major, blocks)
            if block1:  # so that calls of what is refused below are declared lost, unless others share the major
                whole[rule.major] = whole.get(rule.major, True) and rule.whole
            counts = rule.slot is not None or rule.early  # lost are all calls, of the early ones those of the tables
            first1 = self._place(rule, taken, arguments) if counts else 0
            if first1 is None or rule.minor >= layout.BLOCK_MINORS or not block1:
                refused.append(rule)
                continue
            slot1 = _NO_SLOT1 if rule.slot is None else rule.slot + 1
            wanted[rule.major, rule.minor] = slot1 | first1 << 32
        self._apply(wanted, whole, blocks)
        return refused

    def _blocks(self) -> dict[int, int]:
        """Major -> block + 1 of those that have one."""
        found = {major: word & 0xFFFFFFFF for major, word in enumerate(self._majors[:_RESERVED_MAJOR].tolist()) if word}
        return {major: block1 for major, block1 in found.items() if 0 < block1 <= _RESERVED_BLOCK}

    def _block(self, major: int, blocks: dict[int, int]) -> int | None:
        """Its block + 1, given out now if it has none; None when all are in use."""
        if major not in blocks and 0 <= major < _RESERVED_MAJOR:
            free = set(range(1, _RESERVED_BLOCK + 1)) - set(blocks.values())
            if free:
                blocks[major] = min(free)
        return blocks.get(major)

    def _row(self, block1: int) -> memoryview:
        return self._nodes[(block1 - 1) * layout.BLOCK_MINORS : block1 * layout.BLOCK_MINORS]

    # ---- tables ----

    def _used_tables(self, blocks: Mapping[int, int]) -> set[int]:
        """Indexes of the tables that a node refers to now."""
        used: set[int] = set()
        for block1 in blocks.values():
            for word in set(self._row(block1).tolist()):
                index1 = word >> 32
                while 0 < index1 <= layout.TABLES and index1 - 1 not in used:
                    used.add(index1 - 1)
                    index1 = self._table(index1 - 1).next1
        return used

    def used_arguments(self) -> set[int]:
        """Places in the map arguments that a table refers to now."""
        return self._arguments_of(self._used_tables(self._blocks()))

    def _arguments_of(self, tables: Iterable[int]) -> set[int]:
        found = map(self._table, tables)
        return {place for table in found for place in used(table.first, bytes(table.kind))}

    def _table(self, index: int) -> layout.Table:
        return layout.Table.from_buffer_copy(self._tables, index * _TABLE_BYTES)

    def _place(self, rule: NodeRule, taken: set[int], arguments: set[int]) -> int | None:
        """Index + 1 of the first table of its chain, 0 for none, None when there is no room."""
        if len(rule.tables) > layout.CHAIN:
            return None
        next1 = 0
        for table in reversed(rule.tables):
            placed = self._arguments.place(table.kinds, table.arguments, rule.gpus, arguments)
            if placed is None:
                return None
            first, kinds = placed
            entry = layout.Table(mask=table.mask, value=table.value, next1=next1, first=first)
            ctypes.memmove(ctypes.byref(entry, layout.Table.kind.offset), kinds, 256)
            index = self._find(bytes(entry), taken)
            if index is None:
                return None
            taken.add(index)
            next1 = index + 1
        return next1

    def _find(self, entry: bytes, taken: set[int]) -> int | None:
        """Where this very table stands already, else a free place into which it is written."""
        for index in taken:
            if self._tables[index * _TABLE_BYTES : (index + 1) * _TABLE_BYTES] == entry:
                return index
        free = next((index for index in range(layout.TABLES) if index not in taken), None)
        if free is not None:
            self._tables[free * _TABLE_BYTES : (free + 1) * _TABLE_BYTES] = entry
        return free

    # ---- nodes ----

    def _apply(self, wanted: Nodes, whole: Mapping[int, bool], blocks: Mapping[int, int]) -> None:
        for major, block1 in blocks.items():
            row = self._row(block1)
            if major not in whole:
                self._set(self._majors, major, 0)
            elif not self._majors[major]:
                row[:] = memoryview(bytes(len(row) * 8)).cast("Q")  # whoever had the block before
            for minor, word in enumerate(row.tolist()):
                if word != wanted.get((major, minor), 0):
                    row[minor] = wanted.get((major, minor), 0)
            if major in whole:
                self._set(self._majors, major, block1 | _WHOLE * whole[major])

    @staticmethod
    def _set(words: memoryview, index: int, word: int) -> None:
        if words[index] != word:
            words[index] = word
