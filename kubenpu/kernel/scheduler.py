# SPDX-License-Identifier: Apache-2.0
"""Device time by the kernel's GPU scheduler, for drivers that do not tell it: attached and taken off by kubenpu-probe.

The kernel adds up, per client of DRM and ring of hardware, from events that are stable user API since Linux 6.17. Older
ones name no client: without them it refuses to guess. Totals stay while the program is replaced; job_times.py has them.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.attach import has_symbol
from kubenpu.kernel.job_times import LOSSES, PROGRAMS, STEM, TIMES
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.kernel.pins import Pins
from kubenpu.model.errors import KernelError

EVENT = "__tracepoint_drm_sched_job_run"
DRIVERS = "timed_drivers"
MAPS = (TIMES, LOSSES, "running_jobs", "rings_done")


def attach_timing(pins: Pins, object_path: Path, drivers: Collection[str], messages: Messages) -> None:
    """Times the jobs of devices with these drivers, from now on. What was attached before is replaced without a gap:
    for a moment there are both, and a job is done for the first of them."""
    if not has_symbol(EVENT):
        cause = "device time is not available: events of this kernel's GPU scheduler name no client"
        raise KernelError(cause, "Linux 6.17 has them")
    with Object(object_path, messages) as opened, contextlib.ExitStack() as kept:
        layout.check(opened.btf.structs(layout.STRUCTS[STEM]), STEM)
        for name in MAPS:
            with contextlib.suppress(FileNotFoundError):
                opened.reuse(name, kept.enter_context(bpf.Map.pinned(pins.map(name))).fd)
        opened.load()
        with bpf.Map(os.dup(opened.map_fd(DRIVERS))) as timed:
            for driver in drivers:
                timed.update(driver.encode().ljust(layout.RING_NAME, b"\0"), b"\1")
        for name in MAPS:
            if not pins.map(name).exists():
                bpf.pin(opened.map_fd(name), pins.map(name))
        for side, program in PROGRAMS.items():
            _attach(opened, pins, side, program)


def _attach(opened: Object, pins: Pins, side: str, program: str) -> None:
    """In the place of the one before; the link goes last, as it is what counts."""
    link = opened.attach(program)
    try:
        for path in (pins.program(STEM, side), pins.link(STEM, side)):
            fresh = path.with_name(f"{path.name}_fresh")
            fresh.unlink(missing_ok=True)
            if path == pins.link(STEM, side):
                link.pin(fresh)
            else:
                bpf.pin(opened.program_fd(program), fresh)
            fresh.replace(path)
    except OSError as e:
        raise KernelError(f"cannot pin {e.filename}: {e.strerror}") from e
    finally:
        link.close()


def detach_timing(pins: Pins) -> None:
    """Takes it off and forgets what it knew; nothing when it is not there."""
    programs = (path for side in PROGRAMS for path in pins.root.glob(f"{STEM}_{side}_*"))
    try:
        for path in (*programs, *map(pins.map, MAPS)):
            path.unlink(missing_ok=True)
    except OSError as e:
        raise KernelError(f"cannot remove {e.filename}: {e.strerror}", "Run it as root, with bpffs writable") from e
