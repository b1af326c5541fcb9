# SPDX-License-Identifier: Apache-2.0
"""The self-test of a freshly loaded object: one call on a device slot of its own must be counted as exactly one.

Opens no device node (that could wake the hardware), so it proves maps, cgroup look-up and counting, while the kernel
itself vouches for the attachment. Runs before anything is attached; leaves no cell behind.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.hooks import DRM_IOCTL, FILE_IOCTL, Hook
from kubenpu.kernel.libbpf import Object, run_raw_tracepoint
from kubenpu.kernel.memory import CELL_BYTES, free_cell, sum_rows, write_rule
from kubenpu.model.errors import KernelError

_OWN_CGROUP = Path("/proc/self/cgroup")
_KIND = layout.KINDS - 1
_COMMAND = ord("d") << 8
_RULE = layout.RULES - 1
# A device number for each hook that no real device can have.
_RDEV = {
    DRM_IOCTL.name: layout.ACCEL_MAJOR << 20 | layout.ACCEL_MINORS - 1,
    FILE_IOCTL.name: (layout.MAJORS - 1) << 20 | layout.BLOCK_MINORS - 1,
}


def self_test(opened: Object, hook: Hook, cgroup2: Path | None) -> None:
    """Raises KernelError when total and cell do not both move by one. A full table is no fault: the loss must move.
    With `cgroup2`, where that is mounted, also when the cell is not of this process's cgroup: headers can be wrong."""
    with _rule(opened) if hook is DRM_IOCTL else _node(opened):
        before, _ = _total(opened)
        _take_back(opened)
        run_raw_tracepoint(opened.program_fd("run_body"), (_RDEV[hook.name], _COMMAND, 0, 0))
        after, lost = _total(opened)
        owners = _take_back(opened)
    in_cells, own = sum(owners.values()), own_cgroup_id(cgroup2)
    if own is not None and owners.keys() - {own}:
        raise KernelError(
            f"the self-test made a call in cgroup {own} and counted it in {', '.join(map(str, owners))}",
            "Install the headers of exactly this kernel",
        )
    if after - before != 1 or in_cells + lost < 1 or in_cells > 1:
        raise KernelError(
            f"the self-test made 1 call and counted {after - before} for the device and {in_cells} for the cgroup",
            "Report this with the kernel release",
        )


@contextmanager
def _memory(opened: Object, name: str, first: int = 0, count: int | None = None) -> Iterator[memoryview]:
    """A map of the object as shared memory, for the block."""
    with bpf.Map(os.dup(opened.map_fd(name))) as table, table.memory(first, count) as view:
        yield view


@contextmanager
def _rule(opened: Object) -> Iterator[None]:
    """The rule of the self-test's device node, for the block."""
    rule = layout.Rule(slot1=layout.SELFTEST_SLOT + 1)
    ctypes.memset(ctypes.byref(rule, layout.Rule.kind.offset), _KIND, 256)
    with _memory(opened, "rules") as rules:
        write_rule(rules, _RULE, bytes(rule))
        try:
            yield
        finally:
            write_rule(rules, _RULE, None)


@contextmanager
def _node(opened: Object) -> Iterator[None]:
    """The same for a character device: the last minor of the last block, which user space leaves alone."""
    with (
        _memory(opened, "nodes") as nodes,
        nodes.cast("Q") as node,
        _memory(opened, "majors") as majors,
        majors.cast("Q") as major,
    ):
        node[-1], major[-1] = layout.SELFTEST_SLOT + 1, layout.BLOCKS
        try:
            yield
        finally:
            major[-1], node[-1] = 0, 0


def _total(opened: Object) -> tuple[int, int]:
    """Calls of the self-test's slot so far, and how many of them no cell took."""
    cpus = bpf.possible_cpus()
    with _memory(opened, "totals", layout.SELFTEST_SLOT * cpus, cpus) as totals:
        sums = sum_rows(totals, ctypes.sizeof(layout.Totals))
    first = 2 * layout.KINDS + 1
    return sums[_KIND], sum(sums[first : first + len(layout.DEVICE_LOSSES)])


def _take_back(opened: Object) -> dict[int, int]:
    """Frees the self-test's cells; returns the calls that were in them, by cgroup id."""
    counted: dict[int, int] = {}
    with _memory(opened, "cells", layout.DEVICE_SLOTS) as view:
        for start in range(0, len(view), CELL_BYTES):
            cell = layout.Cell.from_buffer_copy(view, start)
            if cell.owner and cell.slot1 == layout.SELFTEST_SLOT + 1:
                counted[cell.owner] = counted.get(cell.owner, 0) + int(cell.calls[_KIND])
                free_cell(view[start : start + CELL_BYTES])
    return counted


def own_cgroup_id(cgroup2: Path | None) -> int | None:
    """The cgroup of this process; None when it is not below what is mounted here."""
    path = next((line[3:] for line in _OWN_CGROUP.read_text().splitlines() if line.startswith("0::")), None)
    if cgroup2 is None or path is None or path.startswith("/.."):
        return None
    try:
        return (cgroup2 / path.lstrip("/")).stat().st_ino
    except OSError:
        return None
