# SPDX-License-Identifier: Apache-2.0
"""The counter cells as shared memory: reading one, and giving one back so that the kernel may claim it.

Works on the mapping that its caller owns. Knows the layout and the order of writes, nothing of who owns what.
"""

from __future__ import annotations

import ctypes

from kubenpu.kernel import layout

CELL_BYTES = ctypes.sizeof(layout.Cell)
CELL_WORDS = CELL_BYTES // 8


def read_cell(memory: memoryview, index: int) -> layout.Cell:
    """A copy of one cell."""
    return layout.Cell.from_buffer_copy(memory, index * CELL_BYTES)


def free_cell(memory: memoryview, words: memoryview, index: int) -> None:
    """Zeroes a cell, its owner last and in one write: from then on the kernel may claim it.

    `words` is the same memory as 64-bit words.
    """
    start = index * CELL_BYTES
    memory[start + 8 : start + CELL_BYTES] = bytes(CELL_BYTES - 8)
    words[index * CELL_WORDS] = 0
