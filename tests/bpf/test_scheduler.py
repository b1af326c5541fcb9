# SPDX-License-Identifier: Apache-2.0
"""The maps in which jobs are timed, on this kernel: read, tidied, and shared by one program after the other.

That the programs count right needs the scheduler's events: tests/vm/cases/test_clients.py.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.kernel import attach, bpf, job_times, layout
from kubenpu.kernel.libbpf import Messages, Object
from kubenpu.kernel.pins import Pins
from kubenpu.kernel.scheduler import MAPS
from kubenpu.kernel.support import KernelFacts


@pytest.fixture
def pins(facts: KernelFacts) -> Iterator[Pins]:
    """With the maps, and a program of another kind in the place of the two: any tells how often it was skipped."""
    made = Pins(Path(f"/sys/fs/bpf/knpu-scheduler-{os.getpid()}"))
    made.make()
    with Object(attach.object_path(job_times.STEM), Messages()) as opened:
        layout.check(opened.btf.structs(layout.STRUCTS[job_times.STEM]), job_times.STEM)
        opened.keep_only(set())
        opened.load()
        for name in MAPS:
            bpf.pin(opened.map_fd(name), made.map(name))
    with Object(attach.object_path("clients"), Messages()) as other:
        other.load()
        for side in job_times.PROGRAMS:
            bpf.pin(other.program_fd("list_holders"), made.program(job_times.STEM, side))
    yield made
    made.remove()


def work(pins: Pins, client_id: int, ring: str, ns: int) -> None:
    use = layout.RingUse(client_id=client_id)
    use.ring[: len(ring)] = ring.encode()
    with bpf.Map.pinned(pins.map(job_times.TIMES)) as times:
        times.update(bytes(use), struct.pack("=Q", ns))


def test_times_by_client_and_ring(pins: Pins) -> None:
    assert job_times.read_times(pins) == {}
    work(pins, 7, "gp", 5)
    work(pins, 7, "pp", 1 << 40)
    work(pins, 1 << 63, "r" * layout.RING_NAME, 1)
    assert job_times.read_times(pins) == {7: {"gp": 5, "pp": 1 << 40}, 1 << 63: {"r" * 32: 1}}


def test_who_is_gone_makes_room(pins: Pins) -> None:
    for client_id in (1, 2, 3):
        work(pins, client_id, "gp", 5)
        work(pins, client_id, "pp", 6)
    job_times.forget_times(pins, {2, 9})
    assert job_times.read_times(pins) == {1: {"gp": 5, "pp": 6}, 3: {"gp": 5, "pp": 6}}
    job_times.forget_times(pins, set())
    assert len(job_times.read_times(pins) or ()) == 2


def test_losses_by_reason(pins: Pins) -> None:
    assert job_times.jobs_lost(pins) == {"jobs_full": 0, "times_full": 0, "program_skipped": 0}
    with bpf.Map.pinned(pins.map(job_times.LOSSES)) as losses:
        assert losses.shape.max_entries == len(job_times.REASONS)
        for reason in range(2):
            losses.update(struct.pack("=I", reason), struct.pack("=Q", 3 + reason))
    assert job_times.jobs_lost(pins) == {"jobs_full": 3, "times_full": 4, "program_skipped": 0}


def test_nothing_is_timed_without_pins(tmp_path: Path) -> None:
    assert job_times.read_times(Pins(tmp_path)) is None
    assert job_times.jobs_lost(Pins(tmp_path)) == {}
    job_times.forget_times(Pins(tmp_path), {1})
