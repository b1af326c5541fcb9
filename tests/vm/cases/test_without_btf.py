# SPDX-License-Identifier: Apache-2.0
"""Kernels whose drm has no BTF: the next rung of the ladder counts the same, and the status says why."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.vm.guest import drm, service, tally, wait
from tests.vm.guest.drm import DrmDevice

pytestmark = pytest.mark.usefixtures("counting")


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
