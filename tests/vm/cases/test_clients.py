# SPDX-License-Identifier: Apache-2.0
"""Device time and memory are what the driver says, per pod and outside, also after the end of whoever adds them up.

The driver is fakeaccel, which counts the time inside its calls. A workload is stopped by a signal for the comparison:
then its client is there and its numbers stand still.

Where the driver tells none (fakesched) it is what the kernel's GPU scheduler says, against the hardware's own tally. A
job counts from when its ring could work on it until it is done. The hardware works within that, and for nobody else
meanwhile: so each client has at least what it worked for that one, and all together at most as long as there was work.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import pytest

from kubenpu.exporters.scrape import Row
from tests.vm.guest import fake, pods, service, tally, wait
from tests.vm.guest.fake import FakeDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import CLIENTS, PROBE

pytestmark = pytest.mark.usefixtures("counting")

BUSY = ["--do", "0x69:1", "--seconds", "600"]
TIME, MEMORY_KIB = "kubenpu_engine_seconds_total", 16_384
UNIT, ENDED_UNIT = "time-farm.service", "time-ended.service"
JOBS = ("jobs-one.service", "jobs-two.service")
NPU, RING = "rknn", "rocket.0"
TALLY = Path("/sys/module/fakesched/parameters/tally")
PINS = Path("/sys/fs/bpf/kubenpu/1")
CLIENTS_FILE = Path("/run/kubenpu/clients.json")
FAST = "[clients]\ninterval_seconds = 1\n"


@pytest.fixture(scope="module", autouse=True)
def looking(counting: None) -> Iterator[None]:
    with service.configured(FAST):
        service.systemctl("restart", CLIENTS)  # it may run since the package was installed
        try:
            yield
        finally:
            service.systemctl("stop", CLIENTS)


@pytest.fixture
def device() -> Iterator[FakeDevice]:
    """One with two engines, whose calls take a while."""
    with fake.loaded(drm=["i915"], engine=["render", "copy"]):
        fake.set_parameter("slow_ms", 5)
        fake.set_parameter("slow_nr", 0x69)
        found = next(one for one in fake.devices() if one.driver == "i915")
        fake.wait_until_known(found.address)
        yield found


def read_fdinfo(pid: int, node: str) -> str:
    """What the driver says of all that a process has opened there."""
    links = [link for link in Path(f"/proc/{pid}/fd").iterdir() if str(link.readlink()) == node]
    return "".join(Path(f"/proc/{pid}/fdinfo/{link.name}").read_text() for link in links)


def told_ns(pids: Sequence[int], node: str) -> int:
    """What the driver says that these processes used."""
    found = (re.findall(r"^drm-engine-render:\s+(\d+) ns$", read_fdinfo(pid, node), re.M) for pid in pids)
    return sum(int(ns) for each in found for ns in each)


@contextmanager
def standing_still(pids: Sequence[int]) -> Iterator[None]:
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
        wait.until("its stop", lambda pid=pid: "State:\tT" in Path(f"/proc/{pid}/status").read_text())  # type: ignore[misc]
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


def shown_ns(found: Sequence[Row], name: str, **labels: str) -> int | None:
    values = [row.value for row in found if row.name == name and labels.items() <= row.labels.items()]
    assert len(values) <= 1
    return round(values[0] * 1e9) if values else None


def assert_told(device: FakeDevice, pids: Mapping[str, Sequence[int]]) -> None:
    """Every nanosecond of each is shown, and no other. `pids` by name of the pod, "" for the unit."""
    everybody = [pid for each in pids.values() for pid in each]
    wait.until("a call of each", lambda: all(_shown(device, pids).values()), 60)
    with standing_still(everybody):
        told: dict[str, int | None] = {name: told_ns(each, device.nodes[-1]) for name, each in pids.items()}
        assert all(told.values())
        wait.until(f"{told}", lambda: _shown(device, pids) == told, 60)
    rows, where = service.rows(), {"device": device.address, "engine": "render"}
    total = shown_ns(rows, "kubenpu_device_engine_seconds_total", **where)
    assert total == sum(_shown(device, pids, rows)[name] or 0 for name in pids)


def _shown(device: FakeDevice, names: Iterable[str], found: Sequence[Row] = ()) -> dict[str, int | None]:
    rows, where = found or service.rows(), {"device": device.address, "engine": "render"}
    pod = {"namespace": "time", "container": "main", **where}
    return {
        name: shown_ns(rows, "kubenpu_engine_seconds_total", pod=name, **pod)
        if name
        else shown_ns(rows, "kubenpu_host_engine_seconds_total", unit=UNIT, **where)
        for name in names
    }


def restart(unit: str) -> None:
    service.systemctl("restart", unit)


def kill(unit: str) -> None:
    before = int(service.show(unit, "MainPID"))
    os.kill(before, signal.SIGKILL)
    wait.until(f"another {unit}", lambda: int(service.show(unit, "MainPID")) not in (0, before))


@contextmanager
def unit_at_work(node: str) -> Iterator[int]:
    """Of another user than root; gives its process."""
    other_user = ["-p", "User=nobody", "-p", "SupplementaryGroups=render video"]
    command = ["systemd-run", "-q", f"--unit={UNIT}", *other_user, str(tally.WORKLOAD), "--node", node, *BUSY]
    subprocess.run(command, check=True)
    try:
        yield int(service.show(UNIT, "MainPID"))
    finally:
        service.systemctl("stop", UNIT)


@pytest.mark.guests("trixie-arm64", "trixie73-arm64")  # as below, where there is no container runtime
def test_time_of_a_unit(device: FakeDevice) -> None:
    with unit_at_work(device.nodes[-1]) as pid:
        assert_told(device, {"": [pid]})


@pytest.mark.guests("trixie")
def test_totals_go_on_when_one_has_ended_and_one_lives(device: FakeDevice) -> None:
    """After a restart and after SIGKILL of whoever adds them up: of each, of the device, and how many ended."""
    node, before = device.nodes[-1], ended(device)
    work = [str(tally.WORKLOAD), "--node", node, "--do", "0x69:1", "--seconds", "5"]
    with unit_at_work(node) as pid:
        subprocess.run(["systemd-run", "-q", "--wait", f"--unit={ENDED_UNIT}", *work], check=True)
        wait.until("its end", lambda: ended(device) == before + 1)
        with standing_still([pid]):
            told = told_ns([pid], node)
            wait.until(f"{told}", lambda: _shown(device, [""]) == {"": told})
            shown_before = of_engines(device)
            assert {UNIT, ENDED_UNIT} <= {unit for _, unit, _ in shown_before}
            for again in (restart, kill):
                since_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                again(CLIENTS)
                wait.until("another look", lambda since_ns=since_ns: looked_ns() > since_ns)  # type: ignore[misc]
                assert of_engines(device) == shown_before
                assert ended(device) == before + 1
    assert "totals begin anew" not in service.journal()


def looked_ns() -> int:
    with CLIENTS_FILE.open() as file:
        return int(json.loads(file.readline())["taken_ns"])


def ended(device: FakeDevice) -> float:
    found = service.select(service.rows(), "kubenpu_device_clients_ended_total", device=device.address)
    return found.get("", 0)


def of_engines(device: FakeDevice) -> dict[tuple[str, str, str], float]:
    """Seconds of the device by metric, unit and engine."""
    found = [row for row in service.rows() if row.labels.get("device") == device.address and "engine" in row.labels]
    return {(row.name, row.labels.get("unit", ""), row.labels["engine"]): row.value for row in found}


@pytest.mark.guests("trixie73")  # on 6.1 test_sandbox.py shows that holders are found
@pytest.mark.deadline(400)
def test_time_of_two_pods_and_of_a_unit(runtime: Runtime, device: FakeDevice) -> None:
    """Also after SIGKILL of whoever adds it up, and of kubenpud."""
    node = device.nodes[-1]
    words = ["--node", node, *BUSY]
    with pods.pod(runtime, "one", namespace="time") as one, pods.pod(runtime, "two", namespace="time") as two:
        containers = {pod.name: pod.run("main", words, devices=[node]) for pod in (one, two)}
        with unit_at_work(node) as pid:
            pids = {name: container.pids() for name, container in containers.items()}
            pids[""] = [pid]
            assert_told(device, pids)
            kill(CLIENTS)
            assert_told(device, pids)
            service.kill_daemon()
            assert_told(device, pids)
            assert service.value("kubenpu_source_up", source="clients") == 1


@pytest.fixture
def xe() -> Iterator[FakeDevice]:
    """One that tells cycles and memory."""
    with fake.loaded(drm=["xe"], engine=["rcs"], cycle_mhz=["19"], memory_kib=[str(MEMORY_KIB)]):
        fake.set_parameter("slow_ms", 5)
        fake.set_parameter("slow_nr", 0x69)
        found = next(one for one in fake.devices() if one.driver == "xe")
        fake.wait_until_known(found.address)
        yield found


@pytest.mark.guests("trixie73")
def test_cycles_and_memory_of_a_pod(runtime: Runtime, xe: FakeDevice) -> None:
    """What was used before the speed of the clock was known counts, too; time is right to 2 %, memory to the byte."""
    node, where = xe.nodes[-1], {"device": xe.address, "pod": "cycles", "namespace": "time", "container": "main"}
    with pods.pod(runtime, "cycles", namespace="time") as pod:
        (pid,) = pod.run("main", ["--node", node, *BUSY], devices=[node]).pids()
        wait.until("its time", lambda: shown_ns(service.rows(), TIME, engine="rcs", **where), 60)
        with standing_still([pid]):
            cycles = sum(map(int, re.findall(r"^drm-cycles-rcs:\s+(\d+)$", read_fdinfo(pid, node), re.M)))
            told = cycles * 1000 / 19
            wait.until(
                f"{told}",
                lambda: abs(told - (shown_ns(service.rows(), TIME, engine="rcs", **where) or 0)) < 0.02 * told,
                60,
            )
        assert told > 1e9
        (memory,) = (
            row for row in service.rows() if row.name == "kubenpu_memory_bytes" and where.items() <= row.labels.items()
        )
        assert (memory.labels["region"], memory.value) == ("vram0", MEMORY_KIB * 1024)


# ---- a driver that tells none ----


class Tally(NamedTuple):
    """Nanoseconds: how long there was work, and how long the hardware worked for each process."""

    busy: int
    worked: dict[int, int]

    def of(self, pid: int) -> int:
        return self.worked.get(pid, 0)


@pytest.fixture
def npu() -> Iterator[str]:
    """The NPU's node, when its jobs are timed. Without it nothing is."""
    assert not timed()
    subprocess.run(["modprobe", "--first-time", "fakesched"], check=True)
    try:
        subprocess.run(["udevadm", "settle"], check=True)
        fake.wait_until_known(NPU)
        assert timed(), service.journal()
        (entry,) = [path for path in Path("/sys/class/accel").iterdir() if (path / "device").resolve().name == NPU]
        yield f"/dev/accel/{entry.name}"
    finally:
        subprocess.run(["rmmod", "fakesched"], check=True)
        service.systemctl("reload", PROBE)
        assert not timed()


def timed() -> bool:
    return all((PINS / f"scheduler_{side}_link").exists() for side in ("run", "done"))


@pytest.fixture
def pids(npu: str) -> Iterator[dict[str, int]]:
    """Two units that make jobs all the time, on one ring."""
    words = [str(tally.WORKLOAD), "--node", npu, "--do", "0x50:1", "--seconds", "600"]
    for unit in JOBS:
        subprocess.run(["systemd-run", "-q", f"--unit={unit}", *words], check=True)
    try:
        yield {unit: int(service.show(unit, "MainPID")) for unit in JOBS}
    finally:
        service.systemctl("stop", *JOBS)


def read_tally() -> Tally:
    (_, busy), *clients = (line.split() for line in TALLY.read_text().splitlines())
    return Tally(int(busy), {int(pid): int(ns) for pid, ns, _ in clients})


def shown(pids: dict[str, int]) -> dict[str, int]:
    rows, where = service.rows(), {"device": NPU, "engine": RING}
    found = {unit: shown_ns(rows, "kubenpu_host_engine_seconds_total", unit=unit, **where) for unit in pids}
    total = shown_ns(rows, "kubenpu_device_engine_seconds_total", **where) or 0
    assert total == sum(ns or 0 for ns in found.values())
    return {unit: ns or 0 for unit, ns in found.items()}


def assert_timed(pids: dict[str, int]) -> int:
    """After some more work for each. Returns what is shown of all."""
    before = read_tally()
    wait.until("more work", lambda: all(read_tally().of(pid) > before.of(pid) + 10**8 for pid in pids.values()))
    with standing_still(list(pids.values())):
        now = read_tally()
        least = {unit: now.of(pid) for unit, pid in pids.items()}
        wait.until(f"{least}", lambda: all(ns >= least[unit] for unit, ns in shown(pids).items()))
        found = sum(shown(pids).values())
        assert sum(least.values()) <= found <= read_tally().busy  # jobs that were handed over before the stop went on
    return found


@pytest.mark.guests("trixie73")
@pytest.mark.deadline(400)
def test_jobs_of_two_clients_on_one_ring(pids: dict[str, int]) -> None:
    """Also across a new program and after SIGKILL of whoever adds it up. Nobody else is shown to have worked."""
    before = assert_timed(pids)
    service.systemctl("reload", PROBE)
    kill(CLIENTS)
    assert assert_timed(pids) > before
    assert service.value("kubenpu_source_up", source="clients") == 1
    with service.drop_in(CLIENTS, "SystemCallFilter=~bpf"):
        service.systemctl("restart", CLIENTS)
        wait.until("what it lacks", lambda: "no device time of jobs: cannot open" in service.journal())
    service.systemctl("daemon-reload")
