# SPDX-License-Identifier: Apache-2.0
"""Device time and memory are what the driver says, per pod and outside, also after the end of whoever adds them up.

The driver is fakeaccel, which counts the time inside its calls. A workload is stopped by a signal for the comparison:
then its client is there and its numbers stand still.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from kubenpu.exporters.scrape import Row
from tests.vm.guest import fake, pods, service, tally, wait
from tests.vm.guest.fake import FakeDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import CLIENTS

pytestmark = pytest.mark.usefixtures("counting")

BUSY = ["--do", "0x69:1", "--seconds", "600"]
UNIT = "time-farm.service"
FAST = "[clients]\ninterval_seconds = 1\n"


@pytest.fixture(scope="module", autouse=True)
def looking(counting: None) -> Iterator[None]:
    with service.configured(FAST):
        service.systemctl("start", CLIENTS)
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


def told_ns(pids: Sequence[int], node: str) -> int:
    """What the driver says that these processes used."""
    total = 0
    for pid in pids:
        for link in Path(f"/proc/{pid}/fd").iterdir():
            if str(link.readlink()) == node:
                text = Path(f"/proc/{pid}/fdinfo/{link.name}").read_text()
                total += int(re.findall(r"^drm-engine-render:\s+(\d+) ns$", text, re.M)[0])
    return total


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
