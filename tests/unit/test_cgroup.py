# SPDX-License-Identifier: Apache-2.0
"""The grammar of cgroup paths: every collected real path, forged ones, and any text at all."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.identity.cgroup import explain, maker, parse_path, uid_key
from kubenpu.model.identity import HostKind, PathKind

CASES = json.loads((Path(__file__).parents[1] / "fixtures" / "cgroup-paths.json").read_text(encoding="utf-8"))
A, B = "a" * 64, "b" * 64
UID_A, UID_B = "11111111-2222-3333-4444-555555555555", "99999999-8888-7777-6666-555555555555"
POD_A = f"/kubepods.slice/kubepods-pod{UID_A.replace('-', '_')}.slice/cri-containerd-{A}.scope"
POD_B = f"/kubepods.slice/kubepods-pod{UID_B.replace('-', '_')}.slice/cri-containerd-{B}.scope"


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["path"][-40:])
def test_collected_path(case: dict[str, str | None]) -> None:
    path = case["path"]
    assert path is not None
    got = parse_path(path)
    assert {
        "path": got.path,
        "kind": got.kind.value,
        "driver": got.driver or "none",
        "runtime": got.runtime,
        "pod_uid": got.pod_uid,
        "container_id": got.container_id,
        "qos": got.qos,
    } == {key: value for key, value in case.items() if key not in ("note", "source")}
    assert (got.unit is None) == (got.pod_uid is not None), "work outside pods has a name, work in pods has not"
    assert explain(got)


def test_all_collected_paths_are_there() -> None:
    assert len(CASES) == 146


@pytest.mark.parametrize(
    ("path", "unit"),
    [
        ("/", "/"),
        ("", "/"),
        ("/../..", "/"),
        ("/init.scope", "init.scope"),
        ("/system.slice/ssh.service", "ssh.service"),
        (r"/system.slice/system-serial\x2dgetty.slice/serial-getty@ttyS0.service", "serial-getty@ttyS0.service"),
        ("/system.slice/run-r1.scope", "run-r1.scope"),
        ("/system.slice", "system.slice"),
        ("/slurm/uid_1000/job_1/step_0", "slurm:1"),
        ("/slurm/uid_1000", "/slurm"),
        (f"/slurm/uid_1000/job_1/step_0/docker-{A}.scope", "slurm:1"),
        ("/slurm_node0/uid_1000/job_12/step_0", "slurm:12"),
        ("/system.slice/slurmstepd.scope/job_123/step_0/user/task_0", "slurm:123"),
        ("/system.slice/slurmstepd.scope/job_123/step_extern/user/task_special", "slurm:123"),
        ("/system.slice/node0_slurmstepd.scope/job_4749/step_batch/user/task_0", "slurm:4749"),
        ("/system.slice/slurmstepd.scope/s5K1KKYAYG5D00/step_0/user/task_0", "slurm:s5K1KKYAYG5D00"),
        ("/system.slice/slurmstepd.scope/system", "slurmstepd.scope"),
        ("/system.slice/slurmstepd.scope/job_12x", "slurmstepd.scope"),
        ("/system.slice/slurmstepd.service/job_12", "slurmstepd.service"),
        ("/system.slice/htcondor/_var_lib_condor_execute_slot1_1@n0.slice/x.scope", "htcondor:slot1_1@n0"),
        ("/htcondor/condor_var_lib_condor_execute_slot2@n0.example.org", "htcondor:slot2@n0.example.org"),
        (f"/nomad/{UID_A}.web", f"nomad:{UID_A}.web"),
        (f"/nomad.slice/share.slice/{UID_A}.web.scope", f"nomad:{UID_A}.web"),
        (f"/nomad.slice/reserve.slice/{UID_A}.train.scope/deeper", f"nomad:{UID_A}.train"),
        (f"/nomad.slice/share.slice/docker-{A}.scope", "docker-aaaaaaaaaaaa"),
        ("/pbs_jobs.service/jobs/12345.pbs0", "pbs:12345.pbs0"),
        ("/pbs_jobs.service/jobid/12345.pbs0/x", "pbs:12345.pbs0"),
        ("/pbs_jobs.service", "pbs_jobs.service"),
        ("/init.scope/slurm/uid_1000/job_1", "init.scope"),
        ("/user.slice/user-1000.slice/system.slice/slurmstepd.scope/job_999/step_0", "user-1000.slice"),
        (f"/docker/{A}/system.slice/slurmstepd.scope/job_999/step_0", "docker-aaaaaaaaaaaa"),
        ("/system.slice/mine.service/slurm/uid_0/job_1", "mine.service"),
        ("/machine.slice/machine-x.scope/payload/slurm/uid_0/job_1", "machine-x.scope"),
        (
            "/system.slice/snap.x.0d7c5f16-59e3-4b6c-8b8c-1a2b3c4d5e6f.scope",
            "snap.x.0d7c5f16-59e3-4b6c-8b8c-1a2b3c4d5e6f.scope",
        ),
        ("/system.slice/run-r0123456789abcdef0123456789abcdef.scope", "run-r0123456789abcdef0123456789abcdef.scope"),
        (f"/system.slice/var-lib-docker-containers-{A}-mounts-shm.mount", "system.slice"),
        ("/user.slice/user-1000.slice/session-2.scope", "session-2.scope"),
        ("/user.slice/user-1000.slice/user@1000.service/app.slice/docker.service", "user@1000.service"),
        (f"/user.slice/user-1000.slice/user@1000.service/docker-{A}.scope", "user@1000.service"),
        ("/user.slice/user-1000.slice/docker.service", "user-1000.slice"),
        ("/user.slice", "user.slice"),
        (f"/system.slice/docker-{A}.scope/docker/{B}", "docker-aaaaaaaaaaaa"),
        (f"/system.slice/kepler.service/libpod-payload-{A}", "kepler.service"),
        (f"/machine.slice/libpod-{A}.scope/container", "podman-aaaaaaaaaaaa"),
        ("/docker/buildkit/k3v9p0q7m2x8r1t5w6y4z0ab1", "docker-buildkit"),
        ("/default/train", "containerd-train"),
        ("/lxc/mysql-1/init.scope", "lxc-mysql-1"),
        (f"/lxc/201/ns/system.slice/docker-{A}.scope", "lxc-201"),
        (f"/system.slice/crio-conmon-{A}.scope", "conmon"),
        ("/libpod_parent/conmon", "conmon"),
        ("/lxc.monitor.web", "conmon"),
        ("/lxc.payload.web/system.slice/ssh.service", "lxc.payload.web"),
        ("/kubepods.slice/kubepods-burstable.slice", "kubepods-burstable.slice"),
        (f"/myparent/{A}", "container-aaaaaaaaaaaa"),
    ],
)
def test_name_of_work_outside_pods_is_the_outermost(path: str, unit: str) -> None:
    assert parse_path(path).unit == unit


@pytest.mark.parametrize(
    ("path", "kind"),
    [
        ("/", HostKind.OTHER),
        ("/system.slice", HostKind.OTHER),
        ("/podruntime/kubelet", HostKind.OTHER),
        (f"/system.slice/crio-conmon-{A}.scope", HostKind.OTHER),
        ("/init.scope", HostKind.UNIT),
        ("/system.slice/ssh.service", HostKind.UNIT),
        (f"/system.slice/kepler.service/libpod-payload-{A}", HostKind.UNIT),
        ("/user.slice", HostKind.SESSION),
        (f"/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-{A}.scope", HostKind.SESSION),
        (f"/docker/{A}", HostKind.CONTAINER),
        (f"/myparent/{A}", HostKind.CONTAINER),
        ("/default/train", HostKind.CONTAINER),
        ("/system.slice/apptainer-12.scope", HostKind.CONTAINER),
        (f"/machine.slice/libpod-{A}.scope/container", HostKind.CONTAINER),
        ("/machine.slice/systemd-nspawn@x.service/payload/system.slice/getty.service", HostKind.MACHINE),
        ("/machine.slice/machine-x.scope", HostKind.MACHINE),
        ("/machine.slice/machine-x.slice/y", HostKind.MACHINE),
        ("/machine.slice", HostKind.OTHER),
        ("/system.slice/systemd-nspawn@x.service", HostKind.MACHINE),
        ("/qemu.slice/101.scope", HostKind.MACHINE),
        (f"/lxc/201/ns/system.slice/docker-{A}.scope", HostKind.MACHINE),
        ("/lxc.payload.project_c1/system.slice/ssh.service", HostKind.MACHINE),
        ("/slurm/uid_1000/job_1/step_0", HostKind.JOB),
        (POD_A, None),
    ],
)
def test_what_work_outside_pods_is(path: str, kind: HostKind | None) -> None:
    assert parse_path(path).host_kind is kind


@pytest.mark.parametrize(
    ("path", "uid"),
    [
        (f"/kubepods/burstable/pod{UID_A}/{A}", UID_A),
        (f"/kubepods.slice/kubepods-pod{UID_A}.slice/docker-{A}.scope", UID_A),
        (POD_A, UID_A),
        (f"/kubepods/pod0123456789abcdef0123456789abcdef/{A}", "0123456789abcdef0123456789abcdef"),
        (f"/kubepods.slice/kubepods-podmy_static.slice/crio-{A}.scope", "my-static"),
        (f"/kubepods/podhdishd83djaidwnduwk28bcsb/{A}", "hdishd83djaidwnduwk28bcsb"),
        (f"/kubepods.slice/kubepods-pod{UID_A.replace('-', '_')}.slice/crio-{A}.scope/container/exec", UID_A),
    ],
)
def test_uid_has_the_spelling_of_the_api(path: str, uid: str) -> None:
    assert parse_path(path).pod_uid == uid


@pytest.mark.parametrize(
    "path",
    [
        f"/nomad/pod{UID_A}/{A}",
        f"/kubepods/extra/pod{UID_A}/{A}",
        f"/docker/podman/{A}",
        f"/kubepods.slice/kubepods-pod{UID_A}.slicex/{A}",
        f"/system.slice/var-lib-kubelet-pods-{UID_A}.mount",
        f"/kubepods/pod{'0' * 300}/{A}",
    ],
)
def test_look_alike_is_no_pod(path: str) -> None:
    assert parse_path(path).pod_uid is None


def test_first_pod_from_the_root_wins() -> None:
    got = parse_path(POD_A + POD_B)
    assert (got.pod_uid, got.container_id) == (UID_A, A)
    assert maker(POD_A + POD_B) is None


def test_container_is_looked_for_directly_below_the_pod_only() -> None:
    got = parse_path(f"/kubepods/pod{UID_A}/x/{B}")
    assert (got.kind, got.container_id) == (PathKind.POD_SANDBOX_LEVEL, None)


@pytest.mark.parametrize(
    ("above", "unit"),
    [
        ("/user.slice/user-1000.slice/user@1000.service", "user@1000.service"),
        ("/user.slice/user-1000.slice/session-4.scope", "session-4.scope"),
        (f"/docker/{B}/kubelet", "docker-bbbbbbbbbbbb"),
        (f"/machine.slice/libpod-{B}.scope", "podman-bbbbbbbbbbbb"),
        (f"/system.slice/cri-containerd-{B}.scope", "containerd-bbbbbbbbbbbb"),
        ("/lxc/201/ns", "lxc-201"),
        ("/machine.slice/systemd-nspawn@x.service/payload", "systemd-nspawn@x.service"),
        ("/system.slice/mine.service", "mine.service"),
        ("/system.slice/mine.service/kubelet.slice", "mine.service"),
        ("/system.slice/containerd.service.service", "containerd.service.service"),
        ("/system.slice/run-r1.scope", "run-r1.scope"),
        ("/azure.slice/agent.service/payload", "agent.service"),
        ("/system.slice/slurmstepd.scope/job_1/step_0/user/task_0", "slurm:1"),
        (f"/nomad/{UID_B}.web", f"nomad:{UID_B}.web"),
        ("/slurm/uid_1/job_2/step_0", "slurm:2"),
        (f"/user.slice/user-0.slice/user@0.service/user.slice/docker-{B}.scope", "user@0.service"),
        (f"/system.slice/k3s.service/docker/{B}", "k3s.service"),
        (f"/system.slice/k3s.service/mine.service/{B}", "k3s.service"),
    ],
)
def test_who_may_have_forged_the_pod_segment(above: str, unit: str) -> None:
    made_by = maker(above + POD_A)
    assert made_by is not None
    assert made_by.unit == unit


@pytest.mark.parametrize(
    "above",
    [
        "",
        "/kubelet.slice",
        "/mykube",
        "/container.slice",
        "/system.slice",
        "/system.slice/k3s.service",
        "/system.slice/k3s-agent.service",
        "/system.slice/rke2-server.service",
        "/podruntime.slice/containerd.service",
        "/system.slice/snap.microk8s.daemon-kubelite.service",
        "/user.slice/user-0.slice/s.scope",
    ],
)
def test_above_are_only_places_of_root(above: str) -> None:
    assert maker(above + POD_A) is None


def test_cri_container_without_pod_can_be_forged_below_who_manages_cgroups() -> None:
    assert maker(f"/system.slice/cri-containerd-{A}.scope") is None
    assert maker(f"/user.slice/user-7.slice/user@7.service/cri-containerd-{A}.scope") is not None
    assert maker(f"/system.slice/mine.service/cri-containerd-{A}.scope") is not None


@pytest.mark.parametrize("node", [f"/docker/{B}", f"/machine.slice/libpod-{B}.scope/container", "/lxc.payload.node/ns"])
def test_in_a_nested_node_its_own_container_is_the_root(node: str) -> None:
    for below in ("", "/kubelet.slice", "/kubelet", "/system.slice/k3s.service"):
        assert maker(node + below + POD_A, nested_node=True) is None
    for below in ("/system.slice/mine.service", f"/docker/{A}", "/user.slice/user-7.slice/user@7.service"):
        outermost = maker(node + below + POD_A)
        assert outermost is not None
        assert maker(node + below + POD_A, nested_node=True) == outermost
    assert maker("/system.slice/mine.service" + POD_A, nested_node=True) is not None


def test_every_collected_pod_path_is_believed_but_where_others_may_have_made_it() -> None:
    refused = [made.unit or "" for case in CASES if case["pod_uid"] and (made := maker(case["path"] or ""))]
    containers = [unit for unit in refused if unit.startswith("docker-")]
    assert sorted(set(refused) - set(containers)) == ["user@1001.service"]  # k3s rootless
    assert len(containers) == 3  # kind, seen from its host


def test_uid_key_ignores_separators() -> None:
    assert uid_key(UID_A) == uid_key(UID_A.replace("-", "_")) == UID_A.replace("-", "")


PODS = ("kubepods", "kubepods.slice", "burstable", f"pod{UID_A}", f"kubepods-pod{UID_A}.slice")
CONTAINERS = (A, f"crio-{A}", f"docker-{A}.scope", f"kubepods-pod{UID_A}.slice:cri-containerd:{A}", "lxc.payload.x")
PLACES = (
    "slurm",
    "uid_1",
    "job_2",
    "nomad.slice",
    f"{UID_B}.t",
    "k3s.service",
    "user.slice",
    "user-1.slice",
    "user@1.service",
    "lxc",
    "docker",
    "k8s.io",
    "libpod_parent",
    "conmon",
)
PARTS = st.sampled_from((*PODS, *CONTAINERS, *PLACES, "x.scope", "..", "", ":", " (deleted)"))


@given(st.one_of(st.text(), st.lists(st.one_of(PARTS, st.text(max_size=8))).map("/".join)))
def test_any_text_has_an_answer(path: str) -> None:
    got = parse_path(path)
    assert got.path == path
    assert (got.unit is None) == (got.pod_uid is not None)
    assert got.unit != ""
    maker(path)


@pytest.mark.parametrize(
    "own", ["/default/train", "/docker/buildkit", "/system.slice/apptainer-12.scope", "/apptainer/4711"]
)
@pytest.mark.parametrize("below", [f"docker-{B}.scope", B, f"docker/{B}"])
def test_a_container_with_a_name_cannot_take_the_id_of_another(own: str, below: str) -> None:
    got, here = parse_path(f"{own}/{below}"), parse_path(own)
    assert (got.kind, got.unit, got.runtime) == (here.kind, here.unit, here.runtime)
    assert got.container_id is None


@given(st.lists(st.one_of(PARTS, st.text(max_size=8))).map("/".join))
def test_nothing_below_a_container_changes_whose_it_is(below: str) -> None:
    got, here = parse_path(f"{POD_A}/{below}"), parse_path(POD_A)
    assert (got.kind, got.pod_uid, got.container_id) == (here.kind, here.pod_uid, here.container_id)
    assert maker(f"{POD_A}/{below}") is None


SHORT_PIECES = (
    "k3s.service/",
    "user.slice/user-0.slice/s.scope/",
    "-",
    "/",
    "a",
    "x/",
    "pod1/",
    "kubepods-",
    "kubepods/",
    "user.slice/",
    "\udcff",
    f"{A}/",
)
LONG_PIECES = (
    "htcondor/_slot1@",
    "slurm_",
    "kubepods-pod",
    "kubepods-poda/",
    "kubepods-pod.slice:",
    "session-.scope",
    f"docker-{A}.scope/",
)


@pytest.mark.parametrize("piece", SHORT_PIECES + LONG_PIECES)
def test_time_is_linear_in_the_length(piece: str) -> None:
    def seconds(length: int) -> float:
        path = "/" + (piece * (length // len(piece) + 1))[:length] + POD_A
        started = time.process_time()
        parse_path(path)
        maker(path)
        return time.process_time() - started

    small = min(seconds(25_000) for _ in range(3))
    # A quadratic step would take 16 times as long and more than ten seconds; linear takes 4 times and under 0.2 s.
    assert seconds(100_000) < max(10 * small, 0.5)
