# SPDX-License-Identifier: Apache-2.0
"""What one counted call costs: the product's counting code against its peers, in nanoseconds per call.

Runs tests/bench/body.bpf.c with BPF_PROG_TEST_RUN: N calls of the code inside one program, less an empty loop. No hook
and no driver are part of the figure. Losses are what each way did not count of the calls made.
"""

from __future__ import annotations

import ctypes
import os
import signal
import statistics
import struct
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.arguments import encode
from kubenpu.kernel.libbpf import Messages, Object, run_raw_tracepoint
from kubenpu.kernel.memory import sum_rows
from kubenpu.model.device import Argument, CountField, Envelope, KindField
from kubenpu.model.kinds import Kind

TREE = Path(__file__).parents[2]
OBJECT = TREE / "build/bpf" / os.uname().machine / "bench_body.bpf.o"
RING_PIN = Path("/sys/fs/bpf") / f"kubenpu-bench-{os.getpid()}"
SLOTS = 1024
CALLS = 2_000_000
ROUNDS = 7
NODE = layout.DRM_MAJOR << 20 | 128
SUBMIT, WAIT = ord("d") << 8 | 0x69, ord("d") << 8 | 0x6C
BATCH = 3 << 30 | 16 << 16 | ord("d") << 8 | 0x42  # says in its argument how much work it hands over
SELECT, ENVELOPE = (3 << 30 | 16 << 16 | ord("d") << 8 | nr for nr in (0x2B, 0xD3))
FOREIGN = ord("T") << 8 | 1
PLAIN, TERMINAL = 195 << 20, 136 << 20 | 3
# Of BATCH and SELECT the first number is read; in ENVELOPE the number, size and address of SELECT follow one another.
INNER = (ctypes.c_uint32 * 4)(SELECT & 0xFF)
ARGUMENTS: tuple[Argument, ...] = (
    CountField(16, 0, 4),
    KindField(16, 0, 4, 0xFFFF_FFFF, dict.fromkeys(range(32, 64), Kind.ALLOC)),
    Envelope(16, 0, 4, length=4, pointer=8),
)
ARGUMENT = (ctypes.c_uint32 * 4)(SELECT & 0xFF, 16, *struct.unpack("=II", struct.pack("=Q", ctypes.addressof(INNER))))


@dataclass(frozen=True, slots=True)
class Figure:
    """`ns` per call, median of ROUNDS. `lost` of `made` calls were not counted, None: cannot lose any."""

    name: str
    ns: float
    made: int = 0
    lost: int | None = None


@contextmanager
def _loaded(storage: bool) -> Iterator[Object]:
    with Object(OBJECT, Messages()) as opened:
        opened.leave_out("cgroup_cells_by_id" if storage else "cgroup_cells")
        opened.set_capacity("cells", layout.DEVICE_SLOTS + SLOTS)
        opened.set_capacity("totals", layout.DEVICE_SLOTS * bpf.possible_cpus())
        opened.set_capacity("losses", bpf.possible_cpus())
        opened.set_constants(
            {
                "knpu_cpus": bpf.possible_cpus(),
                "knpu_cells_mask": SLOTS - 1,
                "knpu_cgroup_storage": int(storage),
                "knpu_capture_names": 1,
            }
        )
        opened.load()
        kinds = bytearray([Kind.OTHER]) * 256
        kinds[0x69], kinds[0x6C] = Kind.SUBMIT, Kind.WAIT
        kinds[BATCH & 0xFF] = Kind.SUBMIT | 1 << layout.KIND_BITS
        with bpf.Map(os.dup(opened.map_fd("rules"))) as rules:
            rules.update(struct.pack("=I", 128), struct.pack("=II", 1, 0) + bytes(kinds))
        with bpf.Map(os.dup(opened.map_fd("arguments"))) as arguments:
            for place, argument in enumerate(ARGUMENTS):
                arguments.update(struct.pack("=I", place), encode(argument, {}))
        yield opened


def _run(opened: Object, program: str, cmd: int, calls: int, *, ret: int = 0, node: int = NODE) -> float:
    """Nanoseconds per call of one run."""
    fd = opened.program_fd(f"bench_{program}")
    begin = time.perf_counter_ns()
    run_raw_tracepoint(fd, (node, cmd, ctypes.addressof(ARGUMENT), ret, calls))
    return (time.perf_counter_ns() - begin) / calls


def _median(opened: Object, program: str, cmd: int, *, ret: int = 0, node: int = NODE) -> float:
    _run(opened, program, cmd, 1000, ret=ret, node=node)
    empty = statistics.median(_run(opened, "nothing", cmd, CALLS) for _ in range(ROUNDS))
    return statistics.median(_run(opened, program, cmd, CALLS, ret=ret, node=node) for _ in range(ROUNDS)) - empty


def cost() -> list[Figure]:
    """One thread, nothing else running."""
    found = []
    for storage, name in ((True, "cgroup storage (6.2 and later)"), (False, "hash by cgroup id (6.1)")):
        with _loaded(storage) as opened:
            found.append(Figure(f"counted call, {name}", _median(opened, "count", SUBMIT)))
            found.append(Figure(f"counted failed call, {name}", _median(opened, "count", SUBMIT, ret=-5)))
            found.append(Figure(f"counted and timed wait, {name}", _median(opened, "count", WAIT)))
            found.append(Figure(f"counted call with its work read, {name}", _median(opened, "count", BATCH)))
            if storage:
                found.append(Figure("call that no rule wants", _median(opened, "count", FOREIGN)))
                found += _cost_of_nodes(opened)
                found.append(Figure("peer: per-CPU hash by (cgroup, device, kind)", _median(opened, "hash", SUBMIT)))
    return found


def _cost_of_nodes(opened: Object) -> list[Figure]:
    """file_ioctl: what an ioctl on any other file pays, and a counted one."""
    with bpf.Map(os.dup(opened.map_fd("majors"))) as majors, bpf.Map(os.dup(opened.map_fd("nodes"))) as nodes:
        majors.update(struct.pack("=I", PLAIN >> 20), struct.pack("=II", 1, 1))
        nodes.update(struct.pack("=I", PLAIN & 0xFFFFF), struct.pack("=II", 1, 1))
    with bpf.Map(os.dup(opened.map_fd("tables"))) as tables:
        table = layout.Table(mask=0xFF, value=SUBMIT >> 8)
        table.kind[SUBMIT & 0xFF] = Kind.SUBMIT
        table.kind[SELECT & 0xFF] = Kind.CONTEXT | 2 << layout.KIND_BITS
        table.kind[ENVELOPE & 0xFF] = Kind.OTHER | 3 << layout.KIND_BITS
        tables.update(struct.pack("=I", 0), bytes(table))
    return [
        Figure("file_ioctl: call of a file that is no character device", _median(opened, "other", FOREIGN)),
        Figure("file_ioctl: call of a terminal", _median(opened, "node", FOREIGN, node=TERMINAL)),
        Figure("file_ioctl: counted call", _median(opened, "node", SUBMIT, node=PLAIN)),
        Figure("file_ioctl: counted call with its kind read", _median(opened, "node", SELECT, node=PLAIN)),
        Figure("file_ioctl: the same in an envelope", _median(opened, "node", ENVELOPE, node=PLAIN)),
    ]


def full_rate(threads: int) -> list[Figure]:
    """`threads` at once, as fast as they can: the product, and an event per call with a reader that drains the ring."""
    with _loaded(True) as opened:
        made = threads * CALLS
        ns = _together(opened, "count", threads)
        with bpf.Map(os.dup(opened.map_fd("totals"))) as totals, totals.memory(0, bpf.possible_cpus()) as rows:
            counted = sum_rows(rows, ctypes.sizeof(layout.Totals))[Kind.SUBMIT]
        ours = Figure(f"ours, {threads} thread{'s' if threads > 1 else ''} at full rate", ns, made, made - counted)
        name = f"peer: an event per call, {threads} thread{'s' if threads > 1 else ''}"
        with _drained(opened) as taken:
            ns = _together(opened, "event", threads)
        return [ours, Figure(name, ns, made, made - taken[0])]


def _together(opened: Object, program: str, threads: int) -> float:
    """Wall-clock nanoseconds per call of one thread while all of them run."""
    workers = [threading.Thread(target=_run, args=(opened, program, SUBMIT, CALLS)) for _ in range(threads)]
    begin = time.perf_counter_ns()
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    return (time.perf_counter_ns() - begin) / CALLS


@contextmanager
def _drained(opened: Object) -> Iterator[list[int]]:
    """The peer's reader for the block; the list then holds how many events it took."""
    binary = TREE / "build/bench/drain"
    binary.parent.mkdir(parents=True, exist_ok=True)
    source = Path(__file__).with_name("drain.c")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", binary, source, "-lbpf"], check=True)
    bpf.pin(opened.map_fd("events"), RING_PIN)
    taken: list[int] = []
    try:
        with subprocess.Popen([binary, RING_PIN], stdout=subprocess.PIPE, text=True) as reader:
            assert reader.stdout is not None
            assert reader.stdout.readline() == "ready\n"
            yield taken
            reader.send_signal(signal.SIGTERM)
            taken.append(int(reader.communicate()[0].split()[0]))
    finally:
        RING_PIN.unlink(missing_ok=True)
