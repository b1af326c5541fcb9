# SPDX-License-Identifier: Apache-2.0
"""What kubenpud costs: start to READY, memory, CPU time at full rate, a scrape of 10,000 series.

The real kubenpud over real pinned maps. For the scrape, cells of made-up pods are written into the maps, with names as
an earlier kubenpud would have left them.
"""

from __future__ import annotations

import ctypes
import os
import socket
import statistics
import struct
import subprocess
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, generate_latest

from kubenpu.kernel import bpf, layout
from kubenpu.kernel.memory import sum_rows
from kubenpu.kernel.pins import Pins
from kubenpu.ledger.names import write_names
from kubenpu.ledger.standing import Standing
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.kinds import KINDS
from tests.bench.body import NODE, SUBMIT
from tests.fakes.own_service import OwnService, mount_bpffs
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import wait_until

NAME = "kubenpu-bench"
PORT = 10075
PODS = 667  # with 7 kinds of calls, 7 of errors and a wait each: 10,005 series
TREE = Path(__file__).parents[2]
CALLER = TREE / "build/bench/caller"


@dataclass(frozen=True, slots=True)
class Daemon:
    """A running kubenpud and how long it took to say READY, in seconds."""

    process: subprocess.Popen[str]
    ready_s: float

    def status(self, field: str) -> int:
        """A field of /proc/PID/status, in kB."""
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{field}:"):
                return int(line.split()[1])
        raise KeyError(field)

    def cpu_s(self) -> float:
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


@contextmanager
def prepared() -> Iterator[OwnService]:
    """Hooked and configured, nothing running; removed with the block."""
    mount_bpffs()
    CALLER.parent.mkdir(parents=True, exist_ok=True)
    subprocess.run(["gcc", "-O1", "-pthread", "-o", CALLER, TREE / "tests/bpf/caller.c"], check=True)
    service = OwnService(NAME, PORT, CgroupTree(cgroup2_mount(), NAME))
    service.remove()
    try:
        sysfs = service.run_directory / "sys"
        service.prepare({"devices": {"sysfs": str(sysfs)}})
        write_sysfs(sysfs, DEVICES)
        service.load_probe("--uprobe", f"{CALLER}:knpu_call")
        yield service
    finally:
        service.remove()


@contextmanager
def started(service: OwnService) -> Iterator[Daemon]:
    """kubenpud, from its start to READY=1 on a notify socket of ours."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as notify:
        path = service.run_directory / "notify"
        path.unlink(missing_ok=True)
        notify.bind(str(path))
        notify.settimeout(30)
        begin = time.monotonic()
        environment = {**os.environ, "NOTIFY_SOCKET": str(path)}
        process = subprocess.Popen(service.command("daemon"), env=environment, text=True, stderr=subprocess.DEVNULL)
        try:
            while b"READY=1" not in notify.recv(4096):
                pass
            yield Daemon(process, time.monotonic() - begin)
        finally:
            process.terminate()
            process.wait(10)


def fill(service: OwnService) -> None:
    """Puts PODS pods with counts into the maps, on the first device."""
    pins = Pins(service.pin_directory)
    names = {}
    with bpf.Map.pinned(pins.map("cells")) as cells:
        for number in range(PODS):
            identity = 1 << 40 | number
            cell = layout.Cell(owner=identity, slot1=1, first_ns=time.clock_gettime_ns(time.CLOCK_BOOTTIME))
            for kind in range(layout.KINDS):
                cell.calls[kind], cell.errors[kind] = number + kind, kind
            cells.update(struct.pack("=I", layout.DEVICE_SLOTS + 64 + number), bytes(cell))
            owner = Owner(OwnerKind.POD, f"team-{number % 20}", f"worker-{number:05}", "main", str(number))
            names[identity] = Standing(owner, final=True)
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    write_names(service.run_directory / "names.json", boot_id, names)


def scrape(url: str, accept: str = "text/plain") -> tuple[float, int]:
    """Milliseconds of one scrape and its number of series."""
    begin = time.perf_counter()
    with urllib.request.urlopen(urllib.request.Request(url, headers={"Accept": accept})) as answer:
        body = answer.read()
    took = (time.perf_counter() - begin) * 1000
    return took, sum(1 for line in body.splitlines() if line and not line.startswith(b"#"))


def peer_scrape() -> float:
    """Milliseconds for as many series the usual way: one metric object per series, updated as calls come in."""
    registry = CollectorRegistry()
    labels = ("namespace", "pod", "container", "device", "vendor", "kind")
    counter = Counter("peer_ioctl", "Calls.", labels, registry=registry)
    for number in range(PODS * 15 // 7):
        for kind in KINDS:
            counter.labels("team", f"worker-{number:05}", "main", "0000:00:02.0", "i915", kind.label).inc(number)
    took = []
    for _ in range(5):
        begin = time.perf_counter()
        generate_latest(registry)
        took.append((time.perf_counter() - begin) * 1000)
    return statistics.median(took)


def idle_and_flood(service: OwnService, daemon: Daemon) -> tuple[float, float, float]:
    """CPU share of kubenpud while nothing happens and in a flood, and the flood's rate in calls per second."""
    idle = _share(daemon, 5.0)
    command = [str(CALLER), str(NODE), str(SUBMIT), "1000000000", "1"]
    flood = subprocess.Popen(command, stdin=subprocess.PIPE)
    try:
        assert flood.stdin is not None
        flood.stdin.write(b"\n")
        flood.stdin.flush()
        before = _counted(service)
        begin = time.monotonic()
        busy = _share(daemon, 5.0)
        rate = (_counted(service) - before) / (time.monotonic() - begin)
    finally:
        flood.kill()
        flood.wait()
    return idle, busy, rate


def _counted(service: OwnService) -> int:
    count = len(DEVICES) * bpf.possible_cpus()
    with bpf.Map.pinned(Pins(service.pin_directory).map("totals")) as totals, totals.memory(0, count) as rows:
        return sum(sum_rows(rows, ctypes.sizeof(layout.Totals))[: layout.KINDS])


def _share(daemon: Daemon, seconds: float) -> float:
    begin, used = time.monotonic(), daemon.cpu_s()
    wait_until(lambda: time.monotonic() - begin > seconds, seconds + 5)
    return (daemon.cpu_s() - used) / (time.monotonic() - begin)
