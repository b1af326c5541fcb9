# SPDX-License-Identifier: Apache-2.0
"""Writing the maps' memory while the kernel uses it: in which order, and inside the map."""

from __future__ import annotations

import mmap
import os

import pytest

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.memory import CELL_BYTES, free_cell

MAJOR_BYTES = 8


def test_a_cell_is_empty_for_everybody_before_it_is_free(monkeypatch: pytest.MonkeyPatch) -> None:
    cells = bytearray(b"\7" * (3 * CELL_BYTES))
    seen = []
    monkeypatch.setattr(os, "sched_yield", lambda: seen.append(bytes(cells)))
    with memoryview(cells) as memory:
        free_cell(memory[CELL_BYTES : 2 * CELL_BYTES])
    kept = b"\7" * CELL_BYTES
    assert seen == [kept + b"\7" * 8 + bytes(CELL_BYTES - 8) + kept]
    assert bytes(cells) == kept + bytes(CELL_BYTES) + kept


@pytest.mark.parametrize("page", [4096, 16384, 65536])
def test_memory_of_a_map_ends_where_the_map_ends(page: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Not with the page, which may be larger; and it begins where it was asked to, which need not be a page."""
    asked = []

    def mapped(_fd: int, size: int, _protection: int, offset: int) -> bytearray:
        asked.append((size, offset))
        return bytearray(size)

    monkeypatch.setattr(bpf, "_info", lambda _fd, info: _describe(info))
    monkeypatch.setattr(bpf, "_mapped", mapped)
    monkeypatch.setattr(mmap, "PAGESIZE", page)
    array = bpf.Map(-1)
    with array.memory() as all_of_it, array.memory(layout.MAJORS - 1) as last:
        assert (len(all_of_it), len(last)) == (layout.MAJORS * MAJOR_BYTES, MAJOR_BYTES)
    whole = -(-layout.MAJORS * MAJOR_BYTES // page) * page
    assert asked == [(whole, 0), (page, whole - page)]


def _describe(info: object) -> None:
    info.value_size, info.max_entries = MAJOR_BYTES, layout.MAJORS  # type: ignore[attr-defined]
