# SPDX-License-Identifier: Apache-2.0
"""Every way in which a pod has several lives: its series, its sums in the history, and never two series with one name.

The resolver, the ledger, the metrics and the history are the real ones; kernel and container runtime are models.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.exporters.metric import Scrape
from kubenpu.exporters.metrics import METRICS
from kubenpu.exporters.prometheus import ViewCollector
from kubenpu.history.recorder import Recorder
from kubenpu.history.report import read_usage
from kubenpu.history.snapshot import read_snapshot
from kubenpu.history.upkeep import Bounds
from kubenpu.identity.cri import ContainerInfo, SandboxInfo
from kubenpu.identity.resolve import RETRY_S, Resolver
from kubenpu.ledger.ledger import Ledger, NodeFacts
from kubenpu.model.allocation import Allocation, Allocations
from kubenpu.model.device import Device, Visibility
from kubenpu.model.sample import HookStatus
from kubenpu.model.view import View
from tests.fakes.kernel_model import DEVICES, KernelModel

GPU, RETENTION_S = DEVICES[0], 100.0
UID, OTHER = "11111111-2222-3333-4444-555555555555", "66666666-2222-3333-4444-555555555555"
STATIC = "8b5f5d4a9c1e0f7b6a5d4c3b2a190807"  # of a static pod: md5, no dashes
FACTS = NodeFacts("1", "n", False, 0.0, (Device(GPU, "drm", "i915", "i915", None, None, (), ""),))


def container(number: int) -> str:
    return f"{number:064x}"


class Runtime:
    """Knows what was created and not removed."""

    name = "runtime"

    def __init__(self) -> None:
        self.containers: dict[str, ContainerInfo] = {}
        self.sandboxes: dict[str, SandboxInfo] = {}

    def container(self, container_id: str, timeout_s: float | None = None) -> ContainerInfo | None:
        return self.containers.get(container_id)

    def sandbox(self, sandbox_id: str, timeout_s: float | None = None) -> SandboxInfo | None:
        return self.sandboxes.get(sandbox_id)

    def sandbox_of_pod(self, pod_uid: str, timeout_s: float | None = None) -> SandboxInfo | None:
        return next((each for each in self.sandboxes.values() if each.pod_uid == pod_uid), None)


class Node:
    """`made`: calls by namespace, pod and container, whoever of that name made them."""

    def __init__(self) -> None:
        self.kernel, self.runtime, self.ledger = KernelModel(), Runtime(), Ledger(RETENTION_S, 0.0)
        self.resolver = Resolver(lambda: [self.runtime])
        self.paths: dict[int, str] = {}
        self.dead: set[int] = set()
        self.now = 1.0
        self.made: Counter[tuple[str, str, str]] = Counter()
        self.allocations: Allocations | None = None

    def pod(self, uid: str = UID, name: str = "web-0", sandbox: int = 900) -> None:
        self.runtime.sandboxes[container(sandbox)] = SandboxInfo(container(sandbox), "shop", name, uid)

    def run(self, number: int, name: str, calls: int, uid: str = UID, pod: str = "web-0") -> int:
        """A container of the pod lives, calls, and is named; returns its cgroup. `name` "": the sandbox's own."""
        if name:
            self.runtime.containers[container(number)] = ContainerInfo(container(number), name, "shop", pod, uid)
        self.paths[number] = f"/kubepods/burstable/pod{uid}/{container(number)}"
        for _ in range(calls):
            self.kernel.call(number, 0, 0, int(self.now * 1e9))
        self.made["shop", pod, name] += calls
        self.cycle()
        return number

    def end(self, number: int, removed: bool = True) -> None:
        self.dead.add(number)
        if removed:
            self.runtime.containers.pop(container(number), None)
        self.cycle()

    def cycle(self, seconds: float = 1.0) -> None:
        self.now += seconds
        sample = self.kernel.sample(int(self.now * 1e9))
        for number in self.ledger.to_resolve(sample, self.now):
            self.ledger.set_resolution(number, self.resolver.resolve(self.paths[number]), self.now + RETRY_S[0])
        for number in set(self.ledger.alive(sample)) & self.dead:
            self.ledger.mark_dead(number, self.now)
        for merge in self.ledger.plan_merges(sample, self.now):
            self.kernel.merge(merge)

    def view(self) -> View:
        sample = replace(self.kernel.sample(int(self.now * 1e9)), generation=1)
        hooks = (HookStatus("drm_ioctl", "fentry", "", 5),)
        facts = replace(FACTS, hooks=hooks, boot_id="b", allocations=self.allocations)
        return self.ledger.view(sample, DEVICES, facts)

    def series(self) -> dict[tuple[str, str, str], float]:
        """Submissions by namespace, pod and container; no label set of any family is there twice."""
        found: dict[tuple[str, str, str], float] = {}
        for family in ViewCollector(self.view, visibility).collect():
            labels = [tuple(sorted(sample.labels.items())) for sample in family.samples]
            assert len(labels) == len(set(labels)), family.name
            if family.name == "kubenpu_ioctl":
                for sample in family.samples:
                    if sample.labels["kind"] == "submit":
                        names = (sample.labels["namespace"], sample.labels["pod"], sample.labels["container"])
                        found[names] = sample.value
        return found

    def total(self, name: str) -> float:
        (metric,) = (each for each in METRICS if each.name == name)
        return sum(point.value for point in metric.points(Scrape(self.view(), frozenset({"i915"}), visibility)))


def visibility(_vendor: str | None) -> dict[str, Visibility]:
    return {"submit": Visibility.ALWAYS}


@pytest.fixture
def node() -> Node:
    made = Node()
    made.pod()
    return made


def restarts(node: Node) -> None:
    """New ids, one name; the first is removed, the second still known as exited."""
    node.end(node.run(1, "main", 5))
    node.end(node.run(2, "main", 3), removed=False)
    node.run(3, "main", 2)


def sandbox_made_anew(node: Node) -> None:
    """A new sandbox of the same pod, its own work and that of a container in it."""
    node.end(node.run(900, "", 1))
    node.end(node.run(1, "main", 5))
    node.runtime.sandboxes.clear()
    node.pod(sandbox=901)
    node.run(901, "", 2)
    node.run(2, "main", 4)


def pod_made_anew(node: Node) -> None:
    """Another UID under the same name: one series, as nobody could tell two apart by their labels."""
    node.end(node.run(1, "main", 5))
    node.pod(uid=OTHER, sandbox=901)
    node.run(2, "main", 4, uid=OTHER)


def both_at_once(node: Node) -> None:
    """The predecessor takes its time to end."""
    node.run(1, "main", 5)
    node.pod(uid=OTHER, sandbox=901)
    node.run(2, "main", 4, uid=OTHER)


def static_pod(node: Node) -> None:
    node.pod(uid=STATIC, name="plugin-node-1", sandbox=902)
    node.end(node.run(1, "plugin", 5, uid=STATIC, pod="plugin-node-1"))
    node.run(2, "plugin", 1, uid=STATIC, pod="plugin-node-1")


def helpers(node: Node) -> None:
    """One that prepares the pod, one beside it, one added for debugging."""
    node.end(node.run(1, "init-weights", 7))
    node.run(2, "sidecar", 2)
    node.run(3, "main", 3)
    node.end(node.run(4, "debugger-x2lqp", 1))


LIVES = (restarts, sandbox_made_anew, pod_made_anew, both_at_once, static_pod, helpers)


@pytest.mark.parametrize("lives", LIVES, ids=lambda lives: lives.__name__)
def test_sums_and_labels_stay_right(node: Node, lives: object) -> None:
    assert callable(lives)
    lives(node)
    assert node.series() == node.made
    assert node.total("kubenpu_unattributed_ioctls") == 0
    node.dead |= node.paths.keys()
    for _ in range(3):
        node.cycle(RETENTION_S)
    assert node.series() == {}
    made = sum(node.made.values())
    assert node.total("kubenpu_departed_ioctl_total") == node.total("kubenpu_device_ioctl_total") == made


@pytest.mark.parametrize("lives", LIVES, ids=lambda lives: lives.__name__)
def test_the_history_charges_each_life_once(node: Node, lives: object, tmp_path: Path) -> None:
    """Stored after each of its moments, and while the kubelet says that every pod has the device."""
    assert callable(lives)
    recorder = Recorder(tmp_path / "usage.db", Bounds(36500, 64))
    cycle = node.cycle

    def record(seconds: float = 1.0) -> None:
        cycle(seconds)
        owners = dict.fromkeys(usage.owner for usage in node.view().usage if usage.alive)
        given = tuple(Allocation(o.namespace, o.pod, o.container, "r", "x", "", GPU, o.pod_uid, None) for o in owners)
        node.allocations = Allocations(given, {})
        snapshot = read_snapshot(node.view(), int(1.7e12 + node.now * 1000), visibility)
        assert snapshot is not None
        recorder.record(snapshot)

    node.cycle = record  # type: ignore[method-assign]
    lives(node)
    recorder.close()
    rows = read_usage(tmp_path / "usage.db", "container", 0, 1e11, deadline_s=60)
    workloads = [row for row in rows if row.part.value == "workload"]
    calls = {(row.namespace, row.pod, row.container): row.amounts["calls.submit"] for row in workloads}
    assert calls == node.made
    (whole,) = (row for row in rows if row.part.value == "device" and row.device == GPU)
    assert whole.amounts["calls.submit"] == sum(node.made.values())
    assert whole.amounts["by_allocation_ms"] == sum(row.amounts["share_ms"] for row in workloads) > 0


def test_a_pod_that_is_known_as_a_whole_holds_what_its_containers_were_given(node: Node) -> None:
    node.pod()
    node.run(900, "", 5)
    node.allocations = Allocations((Allocation("shop", "web-0", "main", "r", "x", "", GPU, UID, None),), {})
    snapshot = read_snapshot(node.view(), 0, visibility)
    assert snapshot is not None
    assert snapshot.held == frozenset(snapshot.workloads)
    assert [names[3] for names, _ in snapshot.held or ()] == [""]


def test_a_container_holds_what_it_was_given_beside_one_that_is_known_as_the_pod(node: Node) -> None:
    """A container that was gone when it was asked about is the pod as a whole, and takes nothing from the others."""
    node.pod()
    node.run(900, "", 5)
    node.run(901, "main", 5)
    node.allocations = Allocations((Allocation("shop", "web-0", "main", "r", "x", "", GPU, UID, None),), {})
    snapshot = read_snapshot(node.view(), 0, visibility)
    assert snapshot is not None
    assert [names[3] for names, _ in snapshot.held or ()] == ["main"]
