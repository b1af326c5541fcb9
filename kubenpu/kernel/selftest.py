# SPDX-License-Identifier: Apache-2.0
"""The self-test of a freshly loaded object: one call on a device slot of its own must be counted as exactly one.

Opens no device node (that could wake the hardware), so it proves maps, cgroup look-up and counting, while the kernel
itself vouches for the attachment. Runs before anything is attached; leaves no cell behind.
"""

from __future__ import annotations

import ctypes
import os
import struct
from collections.abc import Iterator
from contextlib import contextmanager

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.cells import CELL_WORDS, free_cell, read_cell
from kubenpu.kernel.libbpf import Object, run_raw_tracepoint
from kubenpu.model.errors import KernelError

_RDEV = layout.ACCEL_MAJOR << 20 | layout.ACCEL_MINORS - 1
_RULE = struct.pack("=I", layout.DRM_MINORS + layout.ACCEL_MINORS - 1)
_KIND = layout.KINDS - 1
_TOTALS = struct.Struct(f"={ctypes.sizeof(layout.Totals) // 8}Q")


def self_test(opened: Object) -> None:
    """Raises KernelError when total and cell do not both move by one. A full table is no fault: the loss must move."""
    with _rule(opened):
        before, _ = _total(opened)
        _take_back(opened)
        run_raw_tracepoint(opened.program_fd("run_body"), (_RDEV, ord("d") << 8, 0))
        after, lost = _total(opened)
        in_cells = _take_back(opened)
    if after - before != 1 or in_cells + lost < 1 or in_cells > 1:
        raise KernelError(
            f"the self-test made 1 call and counted {after - before} for the device and {in_cells} for the cgroup",
            "Report this with the kernel release",
        )


@contextmanager
def _rule(opened: Object) -> Iterator[None]:
    """The rule of the self-test's device node, for the block."""
    rule = layout.Rule(slot1=layout.SELFTEST_SLOT + 1)
    ctypes.memset(ctypes.byref(rule, layout.Rule.kind.offset), _KIND, 256)
    with bpf.Map(os.dup(opened.map_fd("rules"))) as rules:
        rules.update(_RULE, bytes(rule))
        try:
            yield
        finally:
            rules.update(_RULE, bytes(ctypes.sizeof(layout.Rule)))


def _total(opened: Object) -> tuple[int, int]:
    """Calls of the self-test's slot so far, and how many of them no cell took."""
    with bpf.Map(os.dup(opened.map_fd("totals"))) as totals:
        raw = totals.lookup(struct.pack("=I", layout.SELFTEST_SLOT), _TOTALS.size * bpf.possible_cpus()) or b""
    sums = [sum(column) for column in zip(*_TOTALS.iter_unpack(raw), strict=True)]
    return sums[_KIND], sum(sums[2 * layout.KINDS + 1 :])


def _take_back(opened: Object) -> int:
    """Frees the self-test's cells; returns the calls that were in them."""
    counted = 0
    with bpf.Map(os.dup(opened.map_fd("cells"))) as cells:
        view = memoryview(cells.memory())
        words = view.cast("Q")
        for index in range(layout.DEVICE_SLOTS, cells.shape.max_entries):
            if words[index * CELL_WORDS]:
                cell = read_cell(view, index)
                if cell.slot1 == layout.SELFTEST_SLOT + 1:
                    counted += int(cell.calls[_KIND])
                    free_cell(view, words, index)
        words.release()
        view.release()
    return counted
