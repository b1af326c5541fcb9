# SPDX-License-Identifier: Apache-2.0
"""History from the kernel's counters to a report: real calls, a real kubenpud that is killed, D-Bus, labels of pods.

Every workload keeps a tally of its own, which the history is compared with. Needs root.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from kubenpu.exporters.scrape import Row, fetch
from kubenpu.history.report import read_usage
from kubenpu.model.kinds import KINDS
from kubenpu.model.usage import Part
from tests.fakes.cri_server import FakeCri, FakePod
from tests.fakes.kubelet_server import FakeHolder, FakeKubelet
from tests.fakes.own_service import OwnService, mount_bpffs
from tests.fakes.private_bus import PrivateBus
from tests.fakes.sim_cgroups import CgroupTree, cgroup2_mount
from tests.fakes.sim_metrics import free_url
from tests.fakes.sim_plan import DEVICES, PODS, WORKLOADS
from tests.fakes.sim_sysfs import write_sysfs
from tests.fakes.sim_tally import Tally, TallyFile, wait_until
from tests.fakes.simulated_node import FUNCTION, PROGRAM, fake_pod, workload_command

ROOT = Path(__file__).parents[2]
NAME = "kubenpu-history"
DEADLINE_S = 60.0
TEAM = "example.com/team"


class Node:
    """Devices, pods and a runtime that are made up, counted by the real thing; kubenpud is the test's to start."""

    def __init__(self, service: OwnService, bus: PrivateBus) -> None:
        self.service, self.bus = service, bus
        self.kubelet = FakeKubelet(service.run_directory / "kubelet.sock")
        self.tallies: list[TallyFile] = []

    @property
    def database(self) -> Path:
        return self.service.run_directory / "usage.db"

    def work(self) -> list[Tally]:
        """Every workload calls for a moment and ends; what they say they did, all rounds together."""
        running = []
        for plan in WORKLOADS:
            tally = TallyFile(self.service.run_directory / f"tally-{len(self.tallies)}")
            self.tallies.append(tally)
            process = self.service.tree.start(plan.cgroup, workload_command(plan, tally.path), quiet=True)
            running.append((process, tally))
        assert wait_until(lambda: all(sum(tally.read().calls) > 50 for _, tally in running), DEADLINE_S)
        for _, tally in running:
            tally.ask_stop()
        assert [process.wait(DEADLINE_S) for process, _ in running] == [0] * len(running)
        return [tally.read() for tally in self.tallies]

    def wait_named(self) -> None:
        """Until kubenpud has a name for every workload."""
        assert wait_until(lambda: len(self.names()) == len(WORKLOADS), DEADLINE_S)

    def names(self) -> set[tuple[str, str]]:
        done = self.bus.busctl(
            "--json=short",
            "call",
            "io.kubenpu",
            "/io/kubenpu",
            "io.kubenpu.Node1",
            "GetCounters",
            "a{sv}uu",
            "0",
            "0",
            "0",
        )
        rows = json.loads(done.stdout)["data"][0] if done.returncode == 0 else []
        named = [row for row in rows if row["Kind"]["data"] != "unknown"]
        return {
            (row.get("Pod", row.get("Unit"))["data"] + row.get("Container", {}).get("data", ""), row["Device"]["data"])
            for row in named
        }

    def report(self, *words: str) -> subprocess.CompletedProcess[str]:
        """With the quarter of an hour that is not over."""
        return self.kubenpuctl("report", "--until", "@99999999999", *words)

    def kubenpuctl(self, *words: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "kubenpu.cli.main", *words]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=DEADLINE_S)


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    mount_bpffs()
    service = OwnService(NAME, urlsplit(free_url()).port or 0, CgroupTree(cgroup2_mount(), NAME))
    service.remove()
    socket, sysfs = service.run_directory / "cri.sock", service.run_directory / "sys"
    pods = [fake_pod(pod) for pod in PODS]
    pods[0].labels[TEAM] = "blue"
    pods[1].annotations[TEAM] = "red"
    pods.append(FakePod("uid-of-hold", "hold-0", "llm", "9" * 64, labels={TEAM: "green"}))
    pods.append(FakePod("uid-of-mystery", "mystery-0", "llm", "8" * 64))
    pods.append(FakePod("uid-of-done", "done-0", "llm", "7" * 64, labels={TEAM: "green"}, ready=False))
    runtime = FakeCri(socket, pods)
    with PrivateBus(tmp_path, f"{os.getpid()}-history") as bus:
        made = Node(service, bus)
        try:
            service.prepare(
                {
                    "kernel": {"max_slots": 1024},
                    "dbus": {"address": bus.address},
                    "identity": {
                        "cri_sockets": [str(socket)],
                        "kubelet_socket": str(made.kubelet.path),
                        "pod_labels": [TEAM],
                    },
                    "devices": {"sysfs": str(sysfs), "drivers_directory": str(service.run_directory / "drivers.d")},
                }
            )
            write_sysfs(sysfs, DEVICES)
            service.load_probe("--uprobe", f"{PROGRAM}:{FUNCTION}")
            runtime.start()
            yield made
        finally:
            runtime.stop()
            made.kubelet.stop()
            service.remove()
            for tally in made.tallies:
                tally.close()


def compare(node: Node, tallies: list[Tally]) -> None:
    """The history with the tallies, call by call and kind by kind, and with itself."""
    rows = read_usage(node.database, "container", 0, 1e11, deadline_s=60)
    for number, plan in enumerate(WORKLOADS):
        did = tallies[number :: len(WORKLOADS)]
        title = (plan.pod.namespace, plan.pod.name, plan.container) if plan.pod else ("", "", "")
        (row,) = (
            row
            for row in rows
            if (row.namespace, row.pod, row.container) == title
            and row.device == plan.device.address
            and row.part is Part.WORKLOAD
        )
        for kind in KINDS:
            assert row.amounts.get(f"calls.{kind.label}", 0) == sum(tally.calls[kind] for tally in did), (title, kind)
            assert row.amounts.get(f"errors.{kind.label}", 0) == sum(tally.errors[kind] for tally in did), (title, kind)
        assert sum(t.wait_within_ns for t in did) <= row.amounts["wait_ns"] <= sum(t.wait_around_ns for t in did)
    for device in DEVICES:
        (whole,) = (row for row in rows if row.device == device.address and row.part is Part.DEVICE)
        others = [row for row in rows if row.device == device.address and row.part is not Part.DEVICE]
        for measure, amount in whole.amounts.items():
            if measure.startswith(("calls.", "errors.", "wait_")):
                assert sum(row.amounts.get(measure, 0) for row in others) == amount
        (nobody,) = (row for row in others if row.part is Part.UNATTRIBUTED)
        counts = {name: n for name, n in nobody.amounts.items() if not name.endswith("_ms")}  # who had no name yet
        assert set(counts.values()) == {0}


def test_it_is_exact_over_a_kubenpud_that_is_killed(node: Node) -> None:
    """Calls while it runs, while it does not, and before it is killed."""
    with node.service.daemon():
        node.work()
        node.wait_named()
    node.work()
    with node.service.daemon() as daemon:
        node.work()
        node.wait_named()
        daemon.send_signal(signal.SIGKILL)
        daemon.wait(DEADLINE_S)
    with node.service.daemon():
        tallies = node.work()
        node.wait_named()
    compare(node, tallies)


def test_it_is_exact_over_new_counters(node: Node) -> None:
    with node.service.daemon():
        node.work()
        node.wait_named()
    subprocess.run(node.service.command("probe", "unload"), check=True)
    node.service.load_probe("--uprobe", f"{PROGRAM}:{FUNCTION}")
    with node.service.daemon():
        tallies = node.work()
        node.wait_named()
    compare(node, tallies)


def test_report_over_the_bus(node: Node) -> None:
    with node.service.daemon():
        node.work()
        node.wait_named()
    with node.service.daemon() as daemon:
        done = node.report("--bus", node.bus.address, "--by", f"label:{TEAM}", "--json")
        assert done.returncode == 0, done.stderr
        document = json.loads(done.stdout)
        assert "nobody used hardware" in done.stderr
        assert (document["node"], document["simulated"]) == (os.uname().nodename, True)
        assert {line["names"][TEAM] for line in document["lines"]} > {"blue", "red", "(none)"}
        by_user = node.bus.call("GetUsage", "stt", "pod", "0", "99999999999", user=65534)
        assert by_user.returncode == 0, by_user.stderr
        assert PODS[0].name in by_user.stdout
        page = node.bus.call("GetUsagePage", "sttuu", "pod", "0", "99999999999", "0", "1", user=65534)
        assert page.returncode == 0, page.stderr
        refused = node.bus.call("GetUsage", "stt", "weather", "0", "1")
        assert "cannot be summed up by weather" in refused.stderr
        daemon.send_signal(signal.SIGTERM)
        assert daemon.wait(DEADLINE_S) == 0
    gone = node.report("--bus", node.bus.address)
    assert gone.returncode == 3
    read = node.report("--database", str(node.database), "--by", "pod", "--csv")
    assert read.returncode == 0, read.stderr
    assert PODS[0].name in read.stdout


def series(node: Node, name: str, **labels: str) -> list[Row]:
    found = fetch(node.service.url)
    return [row for row in found if row.name == f"kubenpu_{name}" and labels.items() <= row.labels.items()]


def test_what_the_kubelet_gave_is_told_everywhere(node: Node) -> None:
    """One holds what it uses, one holds and does not use, one uses what it was not given, one holds a mystery, one is
    over and holds nothing."""
    used, other = WORKLOADS[0], next(each for each in WORKLOADS if each.pod not in (None, WORKLOADS[0].pod))
    assert used.pod is not None
    assert other.pod is not None
    held = next(each for each in DEVICES if each not in (used.device, other.device))
    node.kubelet.holders = [
        FakeHolder(used.pod.namespace, used.pod.name, used.container, {"x.example/npu": [used.device.address]}),
        FakeHolder(other.pod.namespace, other.pod.name, other.container),
        FakeHolder("llm", "hold-0", "main", claims=[("llm/c", "gpu.y", "n1", f"at-{held.address}", [])]),
        FakeHolder("llm", "mystery-0", "main", {"z.example/mig": ["MIG-1"]}),
        FakeHolder("llm", "done-0", "main", {"y.example/gpu": [held.address]}),
    ]
    node.kubelet.start()
    with node.service.daemon():
        node.work()
        node.wait_named()
        assert wait_until(lambda: [row.value for row in series(node, "source_up", source="kubelet")] == [1], DEADLINE_S)
        given = {row.labels["pod"]: row.labels["device"] for row in series(node, "device_allocated")}
        assert given == {used.pod.name: used.device.address, "hold-0": held.address, "mystery-0": ""}
        done = node.kubenpuctl("pods", "--bus", node.bus.address, "--idle", "0", "--json")
        assert done.returncode == 0, done.stderr
        found = {(each["pod"], each["device"]): (each["state"], each["pod_uid"]) for each in json.loads(done.stdout)}
        assert found["hold-0", held.address] == ("idle", "uid-of-hold")
        assert found["mystery-0", None] == ("not known", "uid-of-mystery")
        assert found[other.pod.name, other.device.address] == ("not allocated", other.pod.uid)
    by_team = ("--by", f"label:{TEAM}", "--json")
    report = json.loads(node.report("--database", str(node.database), *by_team).stdout)
    with node.service.daemon():  # which may not know at once who is over
        asked = json.loads(node.report("--bus", node.bus.address, *by_team).stdout)
    assert "green" in {line["names"][TEAM] for line in asked["lines"]}
    (green,) = (line for line in report["lines"] if line["names"][TEAM] == "green")
    assert green["share_seconds"] == green["allocated_seconds"] == green["allocated_unused_seconds"] > 0
    split = {device["device"]: set(device["split_seconds"]) for device in report["devices"]}
    assert split[held.address] == {"allocation"}
