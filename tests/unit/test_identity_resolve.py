# SPDX-License-Identifier: Apache-2.0
"""Who is believed: runtimes that confirm, deny, contradict or do not answer, and workloads that lie."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import pytest

from kubenpu.identity.containers import PlainContainer
from kubenpu.identity.cri import ContainerInfo, SandboxInfo
from kubenpu.identity.resolve import (
    GIVE_UP_S,
    LATER_S,
    REMEMBERED_PODS,
    RETRY_S,
    SILENCE_S,
    Resolver,
    next_retry_s,
)
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import HostKind, Owner, OwnerKind, PathIdentity

A, B, BOX, INNER = "a" * 64, "b" * 64, "c" * 64, "d" * 64
UID, UID_B = "11111111-2222-3333-4444-555555555555", "99999999-8888-7777-6666-555555555555"
SLICE = f"/kubepods.slice/kubepods-pod{UID.replace('-', '_')}.slice"
PATH, PATH_BOX = f"{SLICE}/cri-containerd-{A}.scope", f"{SLICE}/cri-containerd-{BOX}.scope"
PATH_B = f"/kubepods/burstable/pod{UID_B}/{B}"
LAST = len(RETRY_S)

TRAIN = Owner(OwnerKind.POD, "ml", "train-0", "worker", UID, A)
TRAIN_POD = Owner(OwnerKind.POD, "ml", "train-0", "", UID, "")
WEB = Owner(OwnerKind.POD, "web", "shop", "nginx", UID_B, B)


@dataclass
class FakeRuntime:
    """Knows two pods unless told otherwise; `down` raises, `takes_s` moves the clock at each call."""

    name: str = "/run/a.sock"
    containers: dict[str, ContainerInfo] = field(
        default_factory=lambda: {
            A: ContainerInfo(A, "worker", "ml", "train-0", UID),
            B: ContainerInfo(B, "nginx", "web", "shop", UID_B),
        }
    )
    sandboxes: dict[str, SandboxInfo] = field(default_factory=lambda: {BOX: SandboxInfo(BOX, "ml", "train-0", UID)})
    down: bool = False
    spend: Callable[[], None] = lambda: None
    asked: list[str] = field(default_factory=list)
    timeouts: list[float | None] = field(default_factory=list)

    def _ask(self, what: str, timeout_s: float | None) -> None:
        self.asked.append(what)
        self.timeouts.append(timeout_s)
        self.spend()
        if self.down:
            raise SourceError(f"{self.name} is down")

    def container(self, container_id: str, timeout_s: float | None = None) -> ContainerInfo | None:
        self._ask(container_id, timeout_s)
        return self.containers.get(container_id)

    def sandbox(self, sandbox_id: str, timeout_s: float | None = None) -> SandboxInfo | None:
        self._ask(sandbox_id, timeout_s)
        return self.sandboxes.get(sandbox_id)

    def sandbox_of_pod(self, pod_uid: str, timeout_s: float | None = None) -> SandboxInfo | None:
        self._ask(pod_uid, timeout_s)
        return next((box for box in self.sandboxes.values() if box.pod_uid == pod_uid), None)


def host(unit: str, kind: HostKind, container_id: str = "") -> Owner:
    return Owner(OwnerKind.HOST, unit=unit, host_kind=kind, container_id=container_id)


def resolver(*runtimes: FakeRuntime, nested_node: bool = False) -> Resolver:
    return Resolver(lambda: runtimes, nested_node)


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        (PATH, TRAIN),
        (PATH + "/container", TRAIN),
        (PATH + "/user/workers", TRAIN),
        (PATH_B, WEB),
        (PATH_BOX, TRAIN_POD),
        (SLICE, TRAIN_POD),
        (f"/kubepods/pod{UID}/kata_{BOX}", TRAIN_POD),
        (f"{SLICE}/crio-{BOX}", TRAIN_POD),
        (f"/vc/{BOX}", TRAIN_POD),
        (f"/kata_overhead/{BOX}", TRAIN_POD),
        (f"/system.slice/cri-containerd-{A}.scope", TRAIN),
        (f"/k8s.io/{BOX}", TRAIN_POD),
        (f"/docker/{A}", TRAIN),
        (f"/docker/{A}/docker/{B}", TRAIN),
        (f"/system.slice/docker-{A}.scope/init", TRAIN),
        (f"/docker/{BOX}", TRAIN_POD),
    ],
)
def test_confirmed_by_the_runtime(path: str, owner: Owner) -> None:
    answer = resolver(FakeRuntime()).resolve(path)
    assert (answer.owner, answer.final) == (owner, True)
    assert "/run/a.sock" in answer.reason


@pytest.mark.parametrize(
    ("path", "owner"),
    [
        ("/", host("/", HostKind.OTHER)),
        ("/system.slice/containerd.service", host("containerd.service", HostKind.UNIT)),
        ("/user.slice/user-1000.slice/session-3.scope", host("session-3.scope", HostKind.SESSION)),
        (f"/libpod_parent/libpod-{A}", host("podman-aaaaaaaaaaaa", HostKind.CONTAINER, A)),
        (f"/user.slice/user-7.slice/user@7.service/docker/{A}", host("user@7.service", HostKind.SESSION)),
        (f"/system.slice/mine.service/docker/{A}", host("mine.service", HostKind.UNIT)),
        (f"/system.slice/kepler.service/libpod-payload-{A}", host("kepler.service", HostKind.UNIT)),
        ("/slurm/uid_1/job_2", host("slurm:2", HostKind.JOB)),
        ("/lxc.payload.web/init.scope", host("lxc.payload.web", HostKind.MACHINE)),
        (f"{SLICE}/crio-conmon-{A}.scope", host("conmon", HostKind.OTHER)),
        ("/system.slice/a\x1b[2J\udcff\n.service", host(r"a\x1b[2J\udcff\n.service", HostKind.UNIT)),
    ],
)
def test_outside_pods_no_runtime_is_asked(path: str, owner: Owner) -> None:
    runtime = FakeRuntime()
    answer = resolver(runtime).resolve(path)
    assert (answer.owner, answer.final, runtime.asked) == (owner, True, [])


def test_plain_container_has_the_name_that_its_engine_knows() -> None:
    """So does one that contains a node of its own, for whatever is below it."""
    asked: list[str | None] = []

    def find(claim: PathIdentity) -> PlainContainer | None:
        asked.append(claim.unit)
        return PlainContainer("docker:kind", "kindest/node:v1.34") if claim.container_id == A else None

    one = Resolver(lambda: [FakeRuntime(containers={})], find_container=find)
    named = Owner(
        OwnerKind.HOST, unit="docker:kind", host_kind=HostKind.CONTAINER, container_id=A, image="kindest/node:v1.34"
    )
    for path in (f"/docker/{A}", f"/docker/{A}/init.scope", f"/docker/{A}/kubelet.slice{PATH_B}"):
        assert one.resolve(path).owner == named
    assert one.resolve(f"/docker/{B}").owner == host("docker-bbbbbbbbbbbb", HostKind.CONTAINER, B)
    assert set(asked) == {"docker-aaaaaaaaaaaa", "docker-bbbbbbbbbbbb"}


@pytest.mark.parametrize("pods", [{}, {INNER: ContainerInfo(INNER, "", "", "", "")}], ids=["unknown", "no pod's"])
def test_container_of_docker_that_is_no_pods_has_its_name_at_once(pods: dict[str, ContainerInfo]) -> None:
    """What it makes below itself is not asked about, whatever it is called."""
    named = host("docker-dddddddddddd", HostKind.CONTAINER, INNER)
    runtime = FakeRuntime(containers={A: ContainerInfo(A, "worker", "ml", "train-0", UID), **pods})
    for path in (f"/docker/{INNER}", f"/docker/{INNER}/docker/{A}", f"/docker/{INNER}{PATH}"):
        answer = resolver(runtime).resolve(path)
        assert (answer.owner, answer.final) == (named, True)
    assert set(runtime.asked) == {INNER}


def test_container_of_docker_waits_no_longer_than_others_for_a_silent_runtime() -> None:
    down = FakeRuntime(down=True)
    answers = [resolver(down).resolve(f"/docker/{INNER}", attempt) for attempt in range(LAST + 1)]
    assert [(answer.final, answer.silent) for answer in answers] == [(False, False)] * LAST + [(True, False)]
    assert "down" in answers[0].reason
    assert resolver(down, FakeRuntime()).resolve(f"/docker/{A}").owner == TRAIN


def test_forged_pod_below_a_container_stays_with_the_container() -> None:
    assert resolver(FakeRuntime()).resolve(PATH + PATH_B).owner == TRAIN


def test_forged_pod_below_a_container_that_is_gone_is_nobody_elses() -> None:
    runtime = FakeRuntime(sandboxes={})
    del runtime.containers[A]
    for attempt in range(LAST + 1):
        answer = resolver(runtime).resolve(PATH + PATH_B, attempt)
        assert answer.owner == Owner(OwnerKind.UNKNOWN, pod_uid=UID, container_id=A)
    assert B not in runtime.asked


@pytest.mark.parametrize(
    ("above", "owner"),
    [
        ("/user.slice/user-1000.slice/user@1000.service", host("user@1000.service", HostKind.SESSION)),
        (f"/docker/{INNER}", host("docker-dddddddddddd", HostKind.CONTAINER, INNER)),
        ("/system.slice/mine.service", host("mine.service", HostKind.UNIT)),
        ("/system.slice/mine.service/kubelet.slice", host("mine.service", HostKind.UNIT)),
        ("/machine.slice/machine-x.scope/payload", host("machine-x.scope", HostKind.MACHINE)),
        ("/system.slice/slurmstepd.scope/job_7/step_0/user/task_0", host("slurm:7", HostKind.JOB)),
    ],
)
def test_pod_named_below_who_manages_cgroups_is_theirs(above: str, owner: Owner) -> None:
    runtime = FakeRuntime()
    for path in (above + PATH, above + PATH_B, f"{above}/cri-containerd-{B}.scope", f"{above}/k8s.io/{B}"):
        assert resolver(runtime).resolve(path).owner == owner
    assert {A, B, UID, UID_B}.isdisjoint(runtime.asked)


def test_nested_node_has_its_pods_below_a_container() -> None:
    nested = resolver(FakeRuntime(), nested_node=True)
    assert nested.resolve(f"/docker/{INNER}/kubelet{PATH}").owner == TRAIN
    assert nested.resolve("/user.slice/user-9.slice/user@9.service" + PATH).owner.kind is OwnerKind.HOST


@pytest.mark.parametrize(("attempt", "final"), [(0, False), (LAST, True)])
def test_right_container_in_the_wrong_pod_is_nobodys(attempt: int, final: bool) -> None:
    """Also when the pod of the path is known: who made that path does not become a part of it."""
    one = resolver(FakeRuntime())
    assert one.resolve(PATH).owner == TRAIN
    answer = one.resolve(f"{SLICE}/cri-containerd-{B}.scope", attempt)
    assert (answer.owner.kind, answer.final) == (OwnerKind.UNKNOWN, final)
    assert "another pod" in answer.reason


@pytest.mark.parametrize(
    "info", [("worker", "ml", "train-0", UID_B), ("worker", "", "", UID), ("worker", "ml", "", UID)]
)
def test_a_runtime_that_errs_hides_no_other(info: tuple[str, str, str, str]) -> None:
    wrong = FakeRuntime("/run/wrong.sock", containers={A: ContainerInfo(A, *info)})
    assert resolver(wrong, FakeRuntime()).resolve(PATH).owner == TRAIN
    assert resolver(wrong).resolve(PATH, LAST).owner.kind is OwnerKind.UNKNOWN


@pytest.mark.parametrize("pod_uid", ["", UID_B])
def test_label_must_name_the_pod_of_the_path(pod_uid: str) -> None:
    runtime = FakeRuntime(containers={A: ContainerInfo(A, "worker", "ml", "train-0", pod_uid)})
    assert resolver(runtime).resolve(PATH).owner.kind is OwnerKind.UNKNOWN


def test_container_without_pod_label_is_no_pod() -> None:
    runtime = FakeRuntime(containers={A: ContainerInfo(A, "worker", "", "", "")})
    assert resolver(runtime).resolve(f"/system.slice/cri-containerd-{A}.scope").owner.kind is OwnerKind.UNKNOWN


def test_container_named_by_docker_as_sandbox_is_the_pod_as_a_whole() -> None:
    runtime = FakeRuntime(containers={BOX: ContainerInfo(BOX, "", "ml", "train-0", UID)})
    assert resolver(runtime).resolve(PATH_BOX).owner == TRAIN_POD


def test_unknown_container_is_asked_again_then_given_up() -> None:
    one = resolver(FakeRuntime(containers={}, sandboxes={}))
    answers = [one.resolve(PATH, attempt) for attempt in range(LAST + 1)]
    assert [answer.final for answer in answers] == [False] * LAST + [True]
    assert {answer.owner for answer in answers} == {Owner(OwnerKind.UNKNOWN, pod_uid=UID, container_id=A)}


def test_image_is_the_containers_and_not_the_sandboxs() -> None:
    runtime = FakeRuntime()
    for name, image in (("worker", "cuda:13"), ("", "")):
        runtime.containers[A] = ContainerInfo(A, name, "ml", "train-0", UID, "cuda:13")
        assert resolver(runtime).resolve(PATH).owner.image == image


def test_static_pod_is_known_by_the_hash_that_the_path_has() -> None:
    uid = "0123456789abcdef0123456789abcdef"
    runtime = FakeRuntime(containers={A: ContainerInfo(A, "etcd", "kube-system", "etcd-cp", uid)})
    for path in (f"/kubepods/burstable/pod{uid}/{A}", f"/kubepods.slice/kubepods-pod{uid}.slice/crio-{A}.scope"):
        assert resolver(runtime).resolve(path).owner == Owner(OwnerKind.POD, "kube-system", "etcd-cp", "etcd", uid, A)


def test_container_that_appears_later_is_found() -> None:
    runtime = FakeRuntime(containers={}, sandboxes={})
    one = resolver(runtime)
    assert not one.resolve(PATH, 0).final
    runtime.containers[A] = ContainerInfo(A, "worker", "ml", "train-0", UID)
    assert one.resolve(PATH, 1).owner == TRAIN


def test_container_gone_before_the_first_question_belongs_to_its_pod() -> None:
    runtime = FakeRuntime(containers={})
    one = resolver(runtime)
    assert not one.resolve(PATH, 0).final
    runtime.sandboxes.clear()  # the pod goes too, but it was confirmed
    answer = one.resolve(PATH, LAST)
    assert (answer.owner, answer.final) == (TRAIN_POD, True)
    assert one.resolve(SLICE).owner == TRAIN_POD


@pytest.mark.parametrize("path", [f"/system.slice/cri-containerd-{A}.scope", f"/k8s.io/{A}", f"/crio-{A}.scope"])
def test_cri_container_without_pod_is_nobodys_until_a_runtime_knows_it(path: str) -> None:
    """It is a pod's, of a kubelet without pod cgroups. As the host's it would be charged twice when its name comes."""
    one = resolver(FakeRuntime(containers={}, sandboxes={}))
    for attempt in (0, LAST):
        assert one.resolve(path, attempt).owner == Owner(OwnerKind.UNKNOWN, container_id=A)
    assert resolver(FakeRuntime()).resolve(path, LAST + 1).owner == TRAIN


def test_sandbox_of_kata_without_pod_and_runtime_is_of_the_host_in_the_end() -> None:
    one = resolver(FakeRuntime(containers={}, sandboxes={}))
    assert one.resolve(f"/vc/{A}", 0).owner.kind is OwnerKind.UNKNOWN
    assert one.resolve(f"/vc/{A}", LAST).owner == host("kata-aaaaaaaaaaaa", HostKind.CONTAINER, A)


def test_runtime_that_is_down_is_never_taken_as_a_denial() -> None:
    """Nor is there an end to questions that nobody answered."""
    answer = resolver(FakeRuntime(down=True)).resolve(PATH, 1000)
    assert (answer.owner.kind, answer.final, answer.reason) == (OwnerKind.UNKNOWN, False, "/run/a.sock is down")
    assert answer.silent
    assert not resolver(FakeRuntime(containers={}, sandboxes={})).resolve(PATH, 1000).silent


def test_no_runtime_at_all_is_not_final() -> None:
    answer = resolver().resolve(PATH, 1000)
    assert (answer.owner.kind, answer.final, answer.silent) == (OwnerKind.UNKNOWN, False, True)


def test_several_runtimes_any_may_confirm_and_all_must_deny() -> None:
    down, empty = FakeRuntime("/run/down.sock", down=True), FakeRuntime("/run/empty.sock", {}, {})
    assert resolver(down, empty, FakeRuntime()).resolve(PATH).owner == TRAIN
    answer = resolver(down, empty).resolve(PATH, LAST)
    assert (answer.final, answer.silent) == (False, True)
    assert resolver(empty, empty).resolve(PATH, LAST).final is True


def test_batch_asks_new_paths_first_and_keeps_its_deadline() -> None:
    now = [0.0]

    def spend() -> None:
        now[0] += 0.4

    runtime = FakeRuntime(spend=spend)
    paths = {f"{PATH}/{n}": n for n in (5, 0, 3, 1)}
    answers = Resolver(lambda: [runtime], clock=lambda: now[0]).resolve_many(paths, 1.0)
    assert list(answers) == [f"{PATH}/0", f"{PATH}/1", f"{PATH}/3"]
    assert runtime.timeouts == [pytest.approx(1.0), pytest.approx(0.6), pytest.approx(0.2)]


def test_time_used_up_in_the_middle_is_no_denial() -> None:
    now = [0.0]

    def spend() -> None:
        now[0] += 2.0

    runtime = FakeRuntime(containers={}, sandboxes={}, spend=spend)
    answer = Resolver(lambda: [runtime], clock=lambda: now[0]).resolve(PATH, LAST, deadline_s=1.0)
    assert (answer.owner.kind, answer.final, len(runtime.asked)) == (OwnerKind.UNKNOWN, False, 1)
    assert answer.silent


def test_memory_of_pods_is_bounded() -> None:
    runtime = FakeRuntime()
    one = resolver(runtime)
    for number in range(REMEMBERED_PODS + 10):
        uid, cid = f"00000000-0000-0000-0000-{number:012x}", f"{number:064x}"
        runtime.containers = {cid: ContainerInfo(cid, "c", "n", "p", uid)}
        assert one.resolve(f"/kubepods/pod{uid}/{cid}").owner.pod_uid == uid
    runtime.sandboxes.clear()
    assert one.resolve(f"/kubepods/pod{uid}").owner.kind is OwnerKind.POD
    assert one.resolve("/kubepods/pod00000000-0000-0000-0000-000000000000").owner.kind is OwnerKind.UNKNOWN


def test_retry_schedule_grows_and_ends_where_it_says() -> None:
    waits = [next_retry_s(attempt) for attempt in range(LAST)]
    assert waits == sorted(waits)
    assert sum(waits) == GIVE_UP_S == pytest.approx(120.5)
    assert next_retry_s(LAST) == next_retry_s(10**9) == LATER_S
    assert {next_retry_s(attempt, silent=True) for attempt in (0, LAST)} == {SILENCE_S}
