# SPDX-License-Identifier: Apache-2.0
"""What the kubelet gave, joined with what the node has and what was used; a kubelet that is silent, late or moved."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from kubenpu.identity import podresources
from kubenpu.model.allocation import Allocation, Claimed, Listing
from kubenpu.model.device import Device, Node
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import ZERO, Counts, HookStatus
from kubenpu.model.view import DeviceUsage, Usage, View
from kubenpu.service import allocations
from kubenpu.service.allocations import KEEP_SECONDS, Kubelet

GPU, NPU = "0000:03:00.0", "npu.0"
GIVEN = Claimed("ml", "train-0", "worker", "amd.com/gpu", GPU, "", (GPU,))
OWNER = Owner(OwnerKind.POD, "ml", "train-0", "worker", "u1", "c1")
DEVICES = (
    Device(GPU, "drm", "amdgpu", "amdgpu", "1002:1", None, (Node("dri/card0", 226, 0),), ""),
    Device(NPU, "accel", "rocket", "rocket", None, None, (Node("accel/accel0", 261, 0),), ""),
    Device("kfd", "char", None, "amdkfd", None, None, (Node("kfd", 240, 0),), "", auxiliary=True),
)


def used(calls: int, owner: Owner = OWNER, device: str = GPU, alive: bool = True) -> Usage:
    return Usage(owner, device, "amdgpu", Counts((calls, 0, 0, 0, 0, 0, 0), (0,) * 7, 0), 1.0, alive)


class Runtime:
    def __init__(self) -> None:
        self.uids = {("ml", "train-0"): "u1"}
        self.asked: list[tuple[str, str]] = []
        self.silent = self.without_cri = False

    def uid_of_pod(self, namespace: str, pod: str) -> str | None:
        self.asked.append((namespace, pod))
        if self.silent:
            raise SourceError("silent")
        return None if self.without_cri else self.uids.get((namespace, pod), "")


class Bench:
    """A node with these devices; the kubelet lists `claimed`, unless it has `trouble`."""

    def __init__(self, place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now, self.trouble, self.cut = 1000.0, "", frozenset[str]()
        self.claimed, self.others = [GIVEN], ["ml/train-0/log"]
        self.usage: list[Usage] = []
        self.runtime = Runtime()
        monkeypatch.setattr(podresources.PodResources, "listing", lambda _client: self.listing())
        self.kubelet = Kubelet(place / "kubelet.sock", lambda: [self.runtime], lambda: self.now)

    def listing(self) -> Listing:
        if self.trouble:
            raise SourceError(self.trouble)
        containers = {f"{each.namespace}/{each.pod}/{each.container}" for each in self.claimed}
        return Listing(tuple(self.claimed), frozenset(containers.union(self.others)), self.cut)

    def view(self) -> View:
        hooks = (HookStatus("drm_ioctl", "fentry", "", 5),)
        totals = (DeviceUsage(GPU, "amdgpu", ZERO, ZERO, {}, 0, 1.0),)
        usage, known = tuple(self.usage), self.kubelet.known
        return View("1", "n", False, 1.0, DEVICES, usage, totals, hooks, (), {}, 0, 0, 0, allocations=known)

    def others_deny(self) -> None:
        """A second runtime answers, and has no pods."""
        other = Runtime()
        other.uids = {}
        self.kubelet._runtimes = lambda: [self.runtime, other]

    def ask(self, seconds: float = 30.0) -> tuple[Allocation, ...]:
        self.now += seconds
        self.kubelet.ask(self.view)
        assert self.kubelet.known is not None
        return self.kubelet.known.all

    def idle(self, seconds: float = 30.0) -> float | None:
        """For how long the one allocation is."""
        (found,) = self.ask(seconds)
        return None if found.idle_since is None else self.now - found.idle_since


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bench]:
    made = Bench(tmp_path, monkeypatch)
    yield made
    made.kubelet.close()


# ---- joined ----


@pytest.mark.parametrize(("beside_one_of_pods", "held"), [(False, True), (True, False)])
def test_a_runtime_without_cri_denies_no_pod(bench: Bench, beside_one_of_pods: bool, held: bool) -> None:
    """As docker's containerd is, beside cri-dockerd or where that is not found."""
    bench.runtime.uids = {}
    if beside_one_of_pods:
        bench.others_deny()
    bench.runtime.without_cri = True
    assert bool(bench.ask()) is held


def test_an_allocation_has_its_device_and_its_pod(bench: Bench) -> None:
    assert bench.ask() == (Allocation("ml", "train-0", "worker", "amd.com/gpu", GPU, "", GPU, "u1", 1030.0),)


def test_an_id_that_tells_no_device_is_shown_without_one(bench: Bench) -> None:
    bench.claimed = [GIVEN._replace(device_id="mystery", names=("mystery",))]
    (found,) = bench.ask()
    assert (found.device_id, found.device, found.idle_since) == ("mystery", None, None)


def test_of_a_device_that_nobody_counts_nothing_is_said_about_use(bench: Bench) -> None:
    bench.claimed = [GIVEN._replace(device_id="accel0", names=("accel0",))]
    (found,) = bench.ask()
    assert (found.device, found.idle_since) == (NPU, None)


def test_a_slow_runtime_is_asked_about_every_pod_in_turn(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the last ones would hold their devices without a name for as long as it is slow."""
    clock = [0.0]

    class Slow(Runtime):
        def uid_of_pod(self, namespace: str, pod: str) -> str | None:
            clock[0] += 0.5
            return super().uid_of_pod(namespace, pod)

    monkeypatch.setattr(allocations, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    bench.runtime = Slow()
    pods = [f"hold-{number:02}" for number in range(12)]
    bench.claimed = [GIVEN._replace(pod=pod) for pod in pods]
    bench.runtime.uids = {("ml", pod): f"u-{pod}" for pod in pods[:-1]}
    known = [sum(bool(each.pod_uid) for each in bench.ask()) for _ in range(3)]
    assert (known, len(bench.ask())) == ([4, 8, 11], 11)  # the last one is over
    asked = bench.runtime.asked
    assert sorted(asked[:12]) == sorted(("ml", pod) for pod in pods)
    assert asked[12:] == asked[:4]  # who was not asked about for longest


def test_who_uses_a_device_is_not_asked_about_and_others_are_each_time(bench: Bench) -> None:
    bench.usage = [used(3)]
    assert [each.pod_uid for each in bench.ask()] == ["u1"]
    assert bench.runtime.asked == []
    bench.usage = [used(3, alive=False)]
    bench.runtime.silent = True
    assert [each.pod_uid for each in bench.ask()] == ["u1"]
    bench.runtime.silent = False
    bench.runtime.uids["ml", "train-0"] = "u2"
    assert [each.pod_uid for each in bench.ask()] == ["u2"]
    assert len(bench.runtime.asked) == 2


def test_a_pod_is_who_it_was_while_no_runtime_answers(bench: Bench) -> None:
    """What it holds is charged to the same workload all the time. An answer that there is none is an answer."""
    bench.ask()
    bench.runtime.silent = True
    assert [each.pod_uid for each in bench.ask()] == ["u1"]
    bench.runtime.silent, bench.runtime.uids = False, {}
    assert bench.ask() == ()
    bench.runtime.silent = True
    assert bench.ask() == ()
    bench.runtime.silent, bench.runtime.uids = False, {("ml", "train-0"): "u2"}
    assert [each.pod_uid for each in bench.ask()] == ["u2"]


def test_while_nobody_has_told_who_a_pod_is_it_is_listed_without_uid(bench: Bench) -> None:
    bench.runtime.silent = True
    assert [each.pod_uid for each in bench.ask()] == [""]
    bench.others_deny()
    assert [each.pod_uid for each in bench.ask()] == [""]


def test_a_pod_that_is_over_and_still_listed_holds_nothing(bench: Bench) -> None:
    """It has no sandbox that is ready, and no cgroup; another pod has its device."""
    done = GIVEN._replace(pod="done-0")
    bench.claimed = [done, GIVEN]
    bench.usage = [used(3)]
    assert [each.pod for each in bench.ask()] == ["train-0"]
    view = bench.view()
    assert view.allocated(used(1)) is True
    assert view.allocated(used(1, replace(OWNER, pod="done-0"))) is True  # it uses it, so it is there after all


def test_a_pod_that_uses_its_device_is_there_even_if_nobody_knows_its_uid(bench: Bench) -> None:
    bench.runtime.uids = {}
    bench.usage = [used(3, replace(OWNER, pod_uid=""))]
    assert [each.pod_uid for each in bench.ask()] == [""]


# ---- idle ----


def test_idle_is_counted_from_the_last_call(bench: Bench) -> None:
    bench.usage = [used(0)]
    assert [bench.idle(), bench.idle(), bench.idle()] == [0, 30, 60]
    bench.usage = [used(1)]
    assert [bench.idle(), bench.idle()] == [0, 30]


def test_calls_of_others_do_not_count(bench: Bench) -> None:
    others = [replace(OWNER, container="log"), replace(OWNER, namespace="x"), replace(OWNER, pod="y")]
    others.append(Owner(OwnerKind.HOST, unit="ssh.service"))
    assert bench.idle() == 0
    for number, owner in enumerate(others, 1):
        bench.usage = [used(number, owner), used(number, device=NPU)]
        assert bench.idle() == 30 * number


def test_a_pod_that_is_known_as_a_whole_uses_what_its_containers_were_given(bench: Bench) -> None:
    """gVisor and Kata show no containers."""
    assert [bench.idle(), bench.idle()] == [0, 30]
    bench.usage = [used(1, replace(OWNER, container="", container_id=""))]
    assert [bench.idle(), bench.idle()] == [0, 30]


def test_a_restarted_container_goes_on_and_its_first_call_counts(bench: Bench) -> None:
    bench.usage = [used(7)]
    bench.idle()
    bench.usage = [used(7, alive=False)]
    assert bench.idle() == 30
    bench.usage = [used(7, alive=False), used(7, replace(OWNER, container_id="c2"))]
    assert bench.idle() == 0


def test_another_pod_of_the_same_name_begins_anew(bench: Bench) -> None:
    bench.usage = [used(7)]
    bench.idle()
    assert bench.idle() == 30
    bench.usage = [used(7, alive=False)]
    bench.runtime.uids["ml", "train-0"] = "u2"
    assert [bench.idle(), bench.idle()] == [0, 30]


def test_what_was_given_back_and_given_again_begins_anew(bench: Bench) -> None:
    bench.idle()
    claimed, bench.claimed = bench.claimed, []
    assert bench.ask() == ()
    bench.claimed = claimed
    assert bench.idle() == 0


def test_idle_is_by_a_clock_that_nobody_sets_and_shown_by_that_of_the_wall(bench: Bench) -> None:
    bench.ask()
    known = bench.kubelet.known
    assert known is not None
    assert known.all[0].idle_since == 1030
    assert [known.shown(wall)[0].idle_since for wall in (0, 1e9)] == [1030, 1e9 + 1030]
    bench.claimed = [GIVEN._replace(device_id="mystery", names=("mystery",))]
    bench.ask()
    assert bench.kubelet.known is not None
    assert bench.kubelet.known.shown(1e9) == bench.kubelet.known.all


# ---- used without being given ----


@pytest.mark.parametrize(
    ("owner", "device", "answer"),
    [
        (OWNER, GPU, True),
        (OWNER, NPU, False),
        (replace(OWNER, container="log"), GPU, False),
        (OWNER, "kfd", None),  # one node for several GPUs
        (OWNER, "gone", None),
        (replace(OWNER, container="init"), GPU, None),  # the kubelet does not tell of these
        (replace(OWNER, container=""), GPU, None),
        (replace(OWNER, pod="other"), GPU, None),
        (Owner(OwnerKind.HOST, unit="ssh.service"), GPU, None),
        (Owner(OwnerKind.UNKNOWN, pod_uid="u1"), GPU, None),
    ],
)
def test_whether_the_user_was_given_it(bench: Bench, owner: Owner, device: str, answer: bool | None) -> None:
    assert bench.view().allocated(used(1, owner, device)) is None
    bench.ask()
    assert bench.view().allocated(used(1, owner, device)) is answer
    assert bench.view().allocated(used(1, owner, device, alive=False)) is None


def test_who_has_a_device_that_nobody_knows_is_not_accused(bench: Bench) -> None:
    bench.claimed = [GIVEN._replace(device_id="mystery", names=("mystery",))]
    bench.ask()
    assert bench.view().allocated(used(1)) is None


def test_who_has_more_devices_than_are_kept_is_not_accused(bench: Bench) -> None:
    bench.cut = frozenset({"ml/train-0/worker"})
    bench.ask()
    answers = [bench.view().allocated(used(1, device=device)) for device in (GPU, NPU)]
    assert answers == [True, None]
    assert bench.view().allocated(used(1, replace(OWNER, container="log"))) is False


# ---- the kubelet ----


def test_an_answer_holds_for_a_while_when_the_kubelet_is_silent(bench: Bench) -> None:
    found = bench.ask()
    bench.trouble = "silent"
    for seconds, known in ((30.0, True), (KEEP_SECONDS - 31, True), (2.0, False)):
        bench.now += seconds
        with pytest.raises(SourceError, match="silent"):
            bench.kubelet.ask(bench.view)
        assert (bench.kubelet.known is not None) is known
    bench.trouble = ""
    assert bench.ask()[0][:7] == found[0][:7]
