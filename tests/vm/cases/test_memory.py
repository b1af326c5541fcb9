# SPDX-License-Identifier: Apache-2.0
"""What kubenpud occupies when it does all that it can do, with the distribution's own Python and libraries."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.vm.guest import pods, service, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime

pytestmark = pytest.mark.usefixtures("counting")

BUDGET_KB = 45 * 1024
CALLS = ["--do", "getparam:10"]


def test_memory_with_every_interface_and_pods_named(runtime: Runtime, virtio: DrmDevice) -> None:
    service.systemctl("restart", service.DAEMON)  # other cases may have made it larger
    with pods.pod(runtime, "one") as one, pods.pod(runtime, "two") as two:
        for pod in (one, two):
            assert pod.run("main", ["--node", virtio.render, *CALLS], devices=[virtio.render]).wait() == 0
            service.wait_for_owner(pod=pod.name, container="main")
        wait.until("D-Bus", lambda: service.select(service.rows(), "kubenpu_source_up", source="dbus") == {"": 1})
        _ask("busctl", "introspect", "io.kubenpu", "/io/kubenpu")
        _ask(
            "busctl", "call", "io.kubenpu", "/io/kubenpu", "io.kubenpu.Node1", "GetUsage", "stt", "pod", "0", str(2**33)
        )
        if Path("/run/kubenpu/io.kubenpu.Node").exists():
            _ask("varlinkctl", "call", "/run/kubenpu/io.kubenpu.Node", "io.kubenpu.Node.GetCounters", "{}")
        for _ in range(20):
            service.rows()
        process = Path(f"/proc/{service.main_pid()}")
        status = dict(line.split(":", 1) for line in (process / "status").read_text().splitlines())
        print(status["VmRSS"], status["Threads"], (process / "smaps_rollup").read_text())
        assert int(status["VmRSS"].split()[0]) < BUDGET_KB


def _ask(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
