# SPDX-License-Identifier: Apache-2.0
"""Without BTF, of drm or of the whole kernel: what is left counts the same, and the status says why."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.vm.guest import drm, fake, pods, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import VIRTIO_KINDS

pytestmark = pytest.mark.usefixtures("counting")

SCRIPT = "getparam:100,resource_create:20,virtio_wait:30,virtio_map:40,execbuffer:5,get_cap:7,bad_close:3"
KFD_KINDS = {0x02: "context", 0x0C: "wait", 0x16: "alloc"}


def test_drm_without_btf(virtio: DrmDevice) -> None:
    """R01. drm is loaded from a file whose BTF section has another name: the kernel finds no BTF, a kprobe counts."""
    service.stop()
    drm.unload(virtio.address)
    try:
        drm.load_without_btf()
        assert not Path("/sys/kernel/btf/drm").exists()
        subprocess.run(["modprobe", "virtio_gpu"], check=True)
        device = drm.virtio_gpu()
        service.start()
        assert service.mechanism() == ("kprobe" if os.environ["KUBENPU_VM_GUEST"] == "bookworm" else "kprobe.multi")
        assert service.reason().startswith("fentry: drm has no BTF (/sys/kernel/btf/drm)")
        wait.until("the device", lambda: virtio.address in service.devices(), 10)
        done = tally.run("--node", device.render, "--do", "getparam:1000")
        assert service.counted("kubenpu_device_ioctl_total", device=virtio.address) == {"other": done.total}
        assert "Traceback" not in service.journal()
    finally:
        service.stop()
        drm.unload(virtio.address)
        subprocess.run(["modprobe", "virtio_gpu"], check=True)
        drm.virtio_gpu()
        drm.vgem()
        service.start()
    wait.until("both devices", lambda: len(service.devices()) == 2, 10)
    assert service.mechanism() == service.BEST_MECHANISM


@pytest.mark.guests("trixie")
@pytest.mark.deadline(400)
def test_kernel_without_btf(runtime: Runtime, virtio: DrmDevice) -> None:
    """Nothing tells the kernel's types: bcc reads them from its headers, once, and kprobes count the same, in a pod
    and outside, by both hooks, and while the program is replaced."""
    with without_btf(), fake.loaded(chr=["kfd:0:0"]):
        assert "has no BTF" in probe_refused("--loader", "core")
        with service.drop_in(service.PROBE, "ProtectKernelModules=yes"):
            assert "no headers of this kernel" in start_refused()
        service.systemctl("daemon-reload")
        service.start()
        for hook in hooks():
            assert (hook["loader"], hook["mechanism"]) == ("bcc", "kprobe.multi"), hook
            assert "fentry: it needs the kernel's BTF, and there is none" in hook["reason"]
        assert "no device time and no device memory: they need a kernel with BTF" in service.journal()
        fake.wait_until_known(virtio.address, "kfd")
        (layout,) = Path("/run/kubenpu").glob("kernel-*.btf")
        made = layout.stat().st_mtime_ns
        with pods.pod(runtime, "no-btf") as pod:
            args = ["--node", virtio.render, "--do", SCRIPT, "--threads", "3", "--seconds", "600"]
            flood = pod.run("flood", args, devices=[virtio.render])
            service.wait_for_owner(pod=pod.name, container="flood")
            service.systemctl("reload", service.PROBE)
            assert flood.stop() == 0
            service.assert_exact(flood.tally(), VIRTIO_KINDS, virtio.address, pod=pod.name, container="flood")
            assert service.value("kubenpu_ioctl_wait_seconds_total", pod=pod.name, container="flood") > 0
        assert layout.stat().st_mtime_ns == made, "bcc ran again for a kernel that it knew"
        outside = tally.run("--node", "/dev/kfd", "--type", "K", "--do", "0x02:50,0x0c:60,0x16:70", "--threads", "3")
        assert service.counted("kubenpu_device_ioctl_total", device="kfd") == service.by_kind(outside.calls, KFD_KINDS)
        service.assert_conserved()
        assert "libbcc" not in Path(f"/proc/{service.main_pid()}/maps").read_text()
        found = {row["check"]: row["found"] for row in json.loads(doctor("--json"))}
        assert "bcc" in found["btf"]
        assert found["hook drm_ioctl"].startswith("kprobe.multi, loader bcc (")
    assert service.mechanism() == service.BEST_MECHANISM
    assert {hook["loader"] for hook in hooks()} == {"core"}


@contextmanager
def without_btf() -> Iterator[None]:
    """The kernel's BTF hidden from user space for the block, with a fresh start of everything after it."""
    service.stop()
    subprocess.run(["mount", "-t", "tmpfs", "none", "/sys/kernel/btf"], check=True)
    try:
        yield
    finally:
        service.stop()
        subprocess.run(["umount", "/sys/kernel/btf"], check=True)
        service.start()


def hooks() -> list[dict[str, str]]:
    return list(json.loads(service.STATE.read_text())["hooks"])


def probe_refused(*arguments: str) -> str:
    done = subprocess.run(["kubenpu-probe", "load", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    return done.stderr


def start_refused() -> str:
    done = subprocess.run(["systemctl", "start", service.PROBE], capture_output=True, text=True, check=False)
    assert done.returncode != 0
    return service.journal()


def doctor(*arguments: str) -> str:
    done = subprocess.run(["kubenpuctl", "doctor", *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout
