# SPDX-License-Identifier: Apache-2.0
"""Pods that come and go between two scrapes: what README.md says to ask is what they did, call by call. R07.

A real Prometheus scrapes a real kubenpud over made-up devices and pods that the real code counts. Needs root.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from statistics import median

import pytest

from kubenpu.model.kinds import KINDS, Kind
from tests.fakes.cri_server import FakeCri
from tests.fakes.monitoring import documented_queries
from tests.fakes.own_service import OwnService, mount_bpffs
from tests.fakes.prometheus import DEADLINE_S, ask, cluster_config, prometheus
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.sim_metrics import serve_text
from tests.fakes.sim_plan import DEVICES, IGPU, SimPod, SimWorkload, Step
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import TallyFile, wait_until
from tests.fakes.simulated_node import FUNCTION, PROGRAM, fake_pod, workload_command
from tests.fakes.web_client import free_port

NAME = "kubenpu-short"
SCRAPE_S = 3
CALLS = 500
PODS = tuple(SimPod("batch", f"job-{number}", "besteffort", "systemd", ("main",)) for number in range(20))
SUBMIT = KINDS.index(Kind.SUBMIT)


@dataclass(frozen=True, slots=True)
class Life:
    """Of one pod: when it began, how long it lived, and its calls by its own tally."""

    unix_s: float
    seconds: float
    submits: int


def live(service: OwnService, pod: SimPod) -> Life:
    """A pod from the first call to the removal of its cgroup."""
    plan = SimWorkload(pod, "main", IGPU, IGPU.nodes[1], 5000, 0, (Step(0x69, Kind.SUBMIT, CALLS),))
    tally = TallyFile(service.run_directory / f"tally-{pod.name}")
    unix_s, begin = time.time(), time.monotonic()
    process = service.tree.start(plan.cgroup, workload_command(plan, tally.path), quiet=True)
    assert wait_until(lambda: tally.read().calls[SUBMIT] >= CALLS, DEADLINE_S)
    tally.ask_stop()
    assert process.wait(DEADLINE_S) == 0
    service.tree.make(plan.cgroup).rmdir()
    life = Life(unix_s, time.monotonic() - begin, tally.read().calls[SUBMIT])
    tally.close()
    return life


@pytest.fixture
def service() -> Iterator[OwnService]:
    mount_bpffs()
    service = OwnService(NAME, free_port(), CgroupTree(cgroup2_mount(), NAME))
    service.remove()
    sysfs, socket = service.run_directory / "sys", service.run_directory / "cri.sock"
    runtime = FakeCri(socket, map(fake_pod, PODS))
    try:
        service.prepare(
            {
                "kernel": {"max_slots": 1024},
                "identity": {"cri_sockets": [str(socket)]},
                "devices": {"sysfs": str(sysfs), "drivers_directory": str(service.run_directory / "drivers.d")},
            }
        )
        write_sysfs(sysfs, DEVICES)
        service.load_probe("--uprobe", f"{PROGRAM}:{FUNCTION}")
        runtime.start()
        with service.daemon():
            yield service
    finally:
        runtime.stop()
        service.remove()


def test_every_call_of_pods_that_live_between_two_scrapes_is_in_the_answer(service: OwnService, tmp_path: Path) -> None:
    names = ("namespace", "pod")
    scrapes = 'count_over_time(kubenpu_ioctl_total{kind="submit"}[1h])'
    with serve_text("") as no_pod_labels:
        config = cluster_config("east", {os.uname().nodename: service.port}, no_pod_labels, tmp_path, f"{SCRAPE_S}s")
        with prometheus(config, tmp_path / "prometheus") as port:
            assert wait_until(lambda: ask(port, "kubenpu_build_info") != {}, DEADLINE_S)
            lives = {(pod.namespace, pod.name): live(service, pod) for pod in PODS}
            assert median(life.seconds for life in lives.values()) < SCRAPE_S
            did = {key: float(life.submits) for key, life in lives.items()}
            assert sum(did.values()) >= CALLS * len(PODS)
            query = documented_queries()["per pod"]
            assert wait_until(lambda: ask(port, query, *names) == did, DEADLINE_S), (ask(port, query, *names), did)
            assert wait_until(lambda: min(ask(port, scrapes, *names).values()) >= 2, DEADLINE_S)
            assert ask(port, scrapes, *names).keys() == did.keys()
            (since,) = ask(port, "kubenpu_counting_since_seconds").values()
            assert since <= min(life.unix_s for life in lives.values())
