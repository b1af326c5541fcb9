# SPDX-License-Identifier: Apache-2.0
"""The pinned arrays as shared memory: reading and freeing cells, writing rules, adding up what each CPU counted.

Works on the mappings that its caller owns. Knows the layout and the order of writes, nothing of who owns what.
"""

from __future__ import annotations

import ctypes
import os
import struct

from kubenpu.kernel import layout

CELL_BYTES = ctypes.sizeof(layout.Cell)
CELL_WORDS = CELL_BYTES // 8
_RULE_BYTES = ctypes.sizeof(layout.Rule)


def copy_cell(cell: memoryview) -> layout.Cell:
    """What is in a cell now."""
    return layout.Cell.from_buffer_copy(cell)


def free_cell(cell: memoryview) -> None:
    """Zeroes the bytes of a cell, its owner last and in one write: from then on the kernel may claim it.

    A processor of arm64 may show its writes to others in another order, but not across this system call.
    """
    cell[8:CELL_BYTES] = bytes(CELL_BYTES - 8)
    os.sched_yield()
    cell.cast("Q")[0] = 0


def write_rule(memory: memoryview, index: int, value: bytes | None) -> None:
    """Sets one rule (the bytes of knpu_rule) or takes it away. The device slot, which enables it, is written last."""
    start = index * _RULE_BYTES
    if value is None:  # its kinds stay: a call that has read the slot a moment ago reads them still
        memory[start : start + 8] = bytes(8)
        return
    if memory[start : start + _RULE_BYTES] == value:
        return
    memory[start + 8 : start + _RULE_BYTES] = value[8:]
    memory[start : start + 8] = value[:8]


def sum_rows(memory: memoryview, row_bytes: int) -> list[int]:
    """The sums of the 64-bit columns of all rows."""
    rows = struct.iter_unpack(f"={row_bytes // 8}Q", memory)
    return [sum(column) for column in zip(*rows, strict=True)]
