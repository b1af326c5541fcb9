# SPDX-License-Identifier: Apache-2.0
"""Whose work it is when paths are spelled in every way, containers live for moments, and the table is full."""

from __future__ import annotations

import subprocess
import uuid
from functools import partial

import pytest

from tests.fakes.cri_server import FakeCri, FakePod
from tests.vm.guest import handmade, pods, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import VIRTIO_KINDS

pytestmark = pytest.mark.usefixtures("counting")

LIVES = 500


def _id() -> str:
    return uuid.uuid4().hex * 2


def _pod(name: str, container_id: str, uid: str | None = None) -> FakePod:
    return FakePod(uid or str(uuid.uuid4()), name, "spelled", _id(), {container_id: "main"})


def _spellings(uid: str, container_id: str) -> dict[str, str]:
    under = uid.replace("-", "_")
    systemd = f"kubepods-burstable-pod{under}.slice"
    return {
        "systemd": f"/kubepods.slice/kubepods-burstable.slice/{systemd}/cri-containerd-{container_id}.scope",
        "cgroupfs": f"/kubepods/burstable/pod{uid}/{container_id}",
        "kind": f"/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-burstable.slice/kubelet-{systemd}"
        f"/cri-containerd-{container_id}.scope",
        "mixed": f"/system.slice/{systemd}:cri-containerd:{container_id}",
        "crio": f"/kubepods.slice/kubepods-burstable.slice/{systemd}/crio-{container_id}.scope",
        "crun": f"/kubepods.slice/kubepods-burstable.slice/{systemd}/crio-{container_id}.scope/container",
        "docker": f"/kubepods.slice/kubepods-burstable.slice/{systemd}/docker-{container_id}.scope",
        "nested": f"/kubepods/burstable/pod{uid}/{container_id}/init.scope/deep/deeper",
    }


@pytest.mark.parametrize("spelling", sorted(_spellings("u", "c")))
def test_every_spelling_of_a_pod(fake_cri: FakeCri, virtio: DrmDevice, spelling: str) -> None:
    """R13, the forms that are pods."""
    container = _id()
    pod = _pod(f"pod-{spelling}", container)
    fake_cri.pods.append(pod)
    path = _spellings(pod.uid, container)[spelling]
    with handmade.cgroup(path):
        done = handmade.run(path, "--node", virtio.render, "--do", "getparam:100")
        service.assert_exact(done, VIRTIO_KINDS, virtio.address, namespace="spelled", pod=pod.name, container="main")


def test_what_looks_like_a_pod_and_is_none(fake_cri: FakeCri, virtio: DrmDevice) -> None:
    """R13, the forms that are not: a runtime's own unit, conmon, a plain container; a job."""
    plain = _id()
    units = {
        "/system.slice/containerd-like.service": "containerd-like.service",
        f"/system.slice/docker-{plain}.scope": f"docker-{plain[:12]}",
        "/system.slice/slurmstepd.scope/job_4711/step_0/user/task_0": "slurm:4711",
        f"/kubepods.slice/crio-conmon-{_id()}.scope": "conmon",
    }
    for path, unit in units.items():
        with handmade.cgroup(path):
            done = handmade.run(path, "--node", virtio.render, "--do", "getparam:9")
            wait.until(unit, partial(service.counted, "kubenpu_host_ioctl_total", unit=unit), 30)
            assert service.counted("kubenpu_host_ioctl_total", unit=unit) == {"other": done.total}


def test_a_pod_forged_by_a_service_is_the_services(fake_cri: FakeCri, virtio: DrmDevice) -> None:
    """One with Delegate= may give its cgroups any name."""
    container = _id()
    pod = _pod("robbed", container)
    fake_cri.pods.append(pod)
    forged = "/system.slice/forger.service" + _spellings(pod.uid, container)["systemd"]
    with handmade.cgroup(forged):
        done = handmade.run(forged, "--node", virtio.render, "--do", "getparam:7")
        wait.until("its calls", partial(service.counted, "kubenpu_host_ioctl_total", unit="forger.service"), 30)
        assert service.counted("kubenpu_host_ioctl_total", unit="forger.service") == {"other": done.total}
    assert not service.counted("kubenpu_ioctl_total", pod="robbed")


def test_a_forged_pod_inside_a_container_stays_the_containers(fake_cri: FakeCri, virtio: DrmDevice) -> None:
    victim_id, attacker_id = _id(), _id()
    victim, attacker = _pod("victim", victim_id), _pod("attacker", attacker_id)
    fake_cri.pods += [victim, attacker]
    own = _spellings(attacker.uid, attacker_id)["cgroupfs"]
    forged = own + _spellings(victim.uid, victim_id)["systemd"]
    with handmade.cgroup(forged):
        done = handmade.run(forged, "--node", virtio.render, "--do", "getparam:100")
        service.assert_exact(done, VIRTIO_KINDS, virtio.address, namespace="spelled", pod="attacker", container="main")
    assert not service.counted("kubenpu_ioctl_total", pod="victim")


@pytest.mark.guests("bookworm")  # cells by hash, and the oldest way to a path
@pytest.mark.deadline(400)
def test_five_hundred_short_lives(fake_cri: FakeCri, virtio: DrmDevice) -> None:
    """R11. Each makes 50 calls and is gone; kubenpud runs with the lowest priority. Every call finds its pod."""
    subprocess.run(["renice", "-n", "19", "-p", str(service.main_pid())], check=True, capture_output=True)
    done = tally.NOTHING
    with handmade.cgroup("/kubepods/burstable"):
        for number in range(LIVES):
            container = _id()
            pod = _pod(f"short-{number}", container)
            fake_cri.pods.append(pod)
            path = f"/kubepods/burstable/pod{pod.uid}/{container}"
            with handmade.cgroup(path):
                done += handmade.run(path, "--node", virtio.render, "--do", "getparam:50")
    assert done.total == LIVES * 50
    wait.until("all names", lambda: sum(_named().values()) == done.total, 60, 1)
    assert set(_named().values()) == {50}
    assert len(_named()) == LIVES
    service.assert_conserved()


def _named() -> dict[str, int]:
    """Calls by pod, of the short-lived ones."""
    found = (r for r in service.rows() if r.name == "kubenpu_ioctl_total" and r.labels["kind"] == "other")
    return {r.labels["pod"]: int(r.value) for r in found if r.labels["pod"].startswith("short-")}


@pytest.mark.guests("trixie")  # of the runtime, not of the kernel
def test_real_containers_removed_as_soon_as_they_end(runtime: Runtime, virtio: DrmDevice) -> None:
    """Named or declared unattributed, but never lost and never someone else's."""
    before = sum(service.counted("kubenpu_unattributed_ioctls", device=virtio.address).values())
    with pods.pod(runtime, "hasty", namespace="r11") as pod:
        for number in range(10):
            container = pod.run(f"c{number}", ["--node", virtio.render, "--do", "getparam:50"], devices=[virtio.render])
            assert container.wait() == 0
            container.remove()
        wait.until("all of them", lambda: _hasty() + _unattributed(virtio) - before == 500, 30)
    print(f"named: {_hasty()} of 500")
    service.assert_conserved()


def _hasty() -> int:
    found = service.rows()
    return int(sum(r.value for r in found if r.name == "kubenpu_ioctl_total" and r.labels["namespace"] == "r11"))


def _unattributed(device: DrmDevice) -> int:
    return sum(service.counted("kubenpu_unattributed_ioctls", device=device.address).values())
