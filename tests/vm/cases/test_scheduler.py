# SPDX-License-Identifier: Apache-2.0
"""Device time of a driver that tells none: what the kernel's GPU scheduler says, against the hardware's own tally.

The NPU is fakesched. A job counts from when its ring could work on it until it is done, the hardware works within that
and for nobody else meanwhile: so each client has at least what the hardware worked for it, and all together at most as
long as there was work.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.vm.cases.test_clients import FAST, kill, shown_ns, standing_still
from tests.vm.guest import fake, service, tally, wait
from tests.vm.guest.service import CLIENTS, PROBE

pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests("trixie73")]

ADDRESS, RING = "rknn", "rocket.0"
UNITS = ("jobs-one.service", "jobs-two.service")
TALLY = Path("/sys/module/fakesched/parameters/tally")
PINS = Path("/sys/fs/bpf/kubenpu/1")


class Tally(NamedTuple):
    """Nanoseconds: how long there was work, and how long the hardware worked for each process."""

    busy: int
    worked: dict[int, int]


@pytest.fixture
def looking() -> Iterator[None]:
    with service.configured(FAST):
        service.systemctl("start", CLIENTS)
        try:
            yield
        finally:
            service.systemctl("stop", CLIENTS)


@pytest.fixture
def node(looking: None) -> Iterator[str]:
    """The NPU's node, when its jobs are timed. Without it nothing is."""
    assert not timed()
    subprocess.run(["modprobe", "--first-time", "fakesched"], check=True)
    try:
        subprocess.run(["udevadm", "settle"], check=True)
        fake.wait_until_known(ADDRESS)
        assert timed(), service.journal()
        (entry,) = [path for path in Path("/sys/class/accel").iterdir() if (path / "device").resolve().name == ADDRESS]
        yield f"/dev/accel/{entry.name}"
    finally:
        subprocess.run(["rmmod", "fakesched"], check=True)
        service.systemctl("reload", PROBE)
        assert not timed()


def timed() -> bool:
    return all((PINS / f"scheduler_{side}_link").exists() for side in ("run", "done"))


@pytest.fixture
def pids(node: str) -> Iterator[dict[str, int]]:
    """Two units that make jobs all the time, on one ring."""
    words = [str(tally.WORKLOAD), "--node", node, "--do", "0x50:1", "--seconds", "600"]
    for unit in UNITS:
        subprocess.run(["systemd-run", "-q", f"--unit={unit}", *words], check=True)
    try:
        yield {unit: int(service.show(unit, "MainPID")) for unit in UNITS}
    finally:
        service.systemctl("stop", *UNITS)


def read_tally() -> Tally:
    (_, busy), *clients = (line.split() for line in TALLY.read_text().splitlines())
    return Tally(int(busy), {int(pid): int(ns) for pid, ns, _ in clients})


def shown(pids: dict[str, int]) -> dict[str, int]:
    rows, where = service.rows(), {"device": ADDRESS, "engine": RING}
    found = {unit: shown_ns(rows, "kubenpu_host_engine_seconds_total", unit=unit, **where) for unit in pids}
    total = shown_ns(rows, "kubenpu_device_engine_seconds_total", **where) or 0
    assert total == sum(ns or 0 for ns in found.values())
    return {unit: ns or 0 for unit, ns in found.items()}


def assert_timed(pids: dict[str, int], before: int = 0) -> int:
    """Returns the sum, which was `before` the last time."""
    wait.until("more work", lambda: min(read_tally().worked[pid] for pid in pids.values()) > before + 10**8)
    with standing_still(list(pids.values())):
        now = read_tally()
        least = {unit: now.worked[pid] for unit, pid in pids.items()}
        wait.until(f"{least}", lambda: all(ns >= least[unit] for unit, ns in shown(pids).items()))
        found = sum(shown(pids).values())
        assert sum(least.values()) <= found <= now.busy
    return found


@pytest.mark.deadline(300)
def test_jobs_of_two_clients_on_one_ring(pids: dict[str, int]) -> None:
    """Also across a new program and after SIGKILL of whoever adds it up. Nobody else is shown to have worked."""
    before = assert_timed(pids)
    service.systemctl("reload", PROBE)
    kill(CLIENTS)
    assert assert_timed(pids, before) > before
    assert service.value("kubenpu_source_up", source="clients") == 1
    with service.drop_in(CLIENTS, "SystemCallFilter=~bpf"):
        service.systemctl("restart", CLIENTS)
        wait.until("what it lacks", lambda: "no device time of jobs: cannot open" in service.journal())
    service.systemctl("daemon-reload")
