# SPDX-License-Identifier: Apache-2.0
"""What other cases do in pods, on guests of another machine, which have no container runtime: each counts by another
mechanism, and one has pages of 16 KiB. Cgroups are made by hand and named by a fake runtime."""

from __future__ import annotations

import json
import os
import subprocess

import pytest

from tests.fakes.cri_server import FakeCri
from tests.vm.cases.test_counting import FLOOD, VGEM_SCRIPT, VIRTIO_SCRIPT
from tests.vm.cases.test_lifecycle import attached_body
from tests.vm.guest import fake, handmade, service, tally
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.service import ARM64, VGEM_KINDS, VIRTIO_KINDS

pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests(*ARM64)]

THREADS = ["--threads", "4"]
FAKE_KINDS = {0x69: "submit", 0x73: "alloc", 0x5B: "alloc", 0x9F: "other"}


@pytest.mark.guests("bookworm-arm64")
def test_without_trampolines_kprobes_count_and_say_why() -> None:
    """6.1: the kernel refuses fentry when it is attached, and kprobe.multi for a function of a module."""
    refused = "fentry: this kernel has no trampolines to attach to (-524); kprobe.multi: cannot attach"
    doctor = json.loads(_said("kubenpuctl", "doctor", "--json"))
    (found,) = (row["found"] for row in doctor if row["check"] == "hook drm_ioctl")
    assert found.startswith("kprobe, loader core (")
    for text in (service.reason(), found, _said("kubenpu-probe", "status")):
        assert refused in text


@pytest.mark.guests("trixie73-arm64")
def test_a_lazily_preempting_kernel_is_counted_by_kprobes_and_says_why() -> None:
    """The model stands in the kernel's configuration alone, as it cannot be changed at run time."""
    assert service.reason() == "fentry: with preemption model lazy the kernel skips fentry programs now and then"
    assert os.sysconf("SC_PAGE_SIZE") == 16384


def _said(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.deadline(300)
def test_exact_in_pods_and_outside(fake_cri: FakeCri, virtio: DrmDevice, vgem: DrmDevice) -> None:
    """Four threads on each of three drivers, beside a flood of another pod, and as 32-bit programs."""
    flood = ["--node", virtio.render, "--do", FLOOD, *THREADS]
    with fake.loaded(drm=["i915"]), handmade.pod(fake_cri, "one") as one, handmade.pod(fake_cri, "two") as two:
        gpu = next(device for device in fake.devices() if device.driver == "i915")
        fake.wait_until_known(gpu.address)
        fake.set_parameter("err_nr", 0x73)
        script = ",".join(f"{nr:#x}:{400 + nr}" for nr in FAKE_KINDS)
        with handmade.running(two, *flood) as stop:
            for address, node, words, kinds in (
                (virtio.address, virtio.card, [VIRTIO_SCRIPT], VIRTIO_KINDS),
                (vgem.address, vgem.card, [VGEM_SCRIPT], VGEM_KINDS),
                (gpu.address, gpu.nodes[-1], [script], FAKE_KINDS),
                (gpu.address, gpu.nodes[0], [script, "--compat"], FAKE_KINDS),
            ):
                before = _pod_and_total("one", address)
                made = ["--node", node, "--do", *words, *THREADS]
                inside, outside = handmade.run(one, *made), tally.run(*made)
                service.wait_for_owner(device=address, pod="one", container="main")
                after = _pod_and_total("one", address)
                assert _grown(before[0], after[0]) == service.by_kind(inside.calls, kinds), (address, service.dropped())
                if address != virtio.address:  # the flood is there
                    assert _grown(before[1], after[1]) == service.by_kind((inside + outside).calls, kinds), address
            done = stop()
        service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod="two", container="main")
        assert done.total > 1000
    service.assert_conserved()


def _pod_and_total(pod: str, device: str) -> tuple[dict[str, int], dict[str, int]]:
    return (
        service.counted("kubenpu_ioctl_total", device=device, pod=pod, container="main"),
        service.counted("kubenpu_device_ioctl_total", device=device),
    )


def _grown(before: dict[str, int], after: dict[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in after.items() if n != before.get(kind, 0)}


@pytest.mark.deadline(400)
def test_kill_nine_and_handover_in_a_flood(fake_cri: FakeCri, virtio: DrmDevice) -> None:
    """kubenpud dies twice, and the code behind the hook is replaced three times."""
    script = "getparam:50,resource_create:5,virtio_wait:5,bad_close:3"
    body = attached_body()  # not looked at in the flood: a system call on a map, beside which kprobes may be skipped
    with handmade.pod(fake_cri, "steady") as pod:
        with handmade.running(pod, "--node", virtio.render, "--do", script, *THREADS, "--seconds", "900") as stop:
            service.wait_for_owner(pod="steady", container="main")
            for _ in range(2):
                before = service.counted("kubenpu_ioctl_total", pod="steady")["other"]
                service.kill_daemon()
                service.wait_for_owner(pod="steady", container="main")
                assert service.counted("kubenpu_ioctl_total", pod="steady")["other"] >= before
            for _ in range(3):
                service.systemctl("reload", service.PROBE)
            done = stop()
        assert attached_body() != body
        service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod="steady", container="main")
    service.kill_daemon()
    service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod="steady", container="main")
    service.assert_conserved()


@pytest.mark.guests("trixie73-arm64")  # the others are built without accel
def test_an_accel_device() -> None:
    with fake.loaded(accel=["amdxdna"]):
        npu = next(device for device in fake.devices() if device.driver == "amdxdna")
        fake.wait_until_known(npu.address)
        done = tally.run("--node", npu.nodes[0], "--do", "0x43:300,0x46:100,0x9f:20", *THREADS)
        kinds = {0x43: "alloc", 0x46: "submit", 0x9F: "other"}
        assert service.counted("kubenpu_device_ioctl_total", device=npu.address) == service.by_kind(done.calls, kinds)
    service.assert_conserved()
