# SPDX-License-Identifier: Apache-2.0
"""Plain containers of real engines, named by the state that they keep: podman as root, and containerd for nerdctl."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.vm.guest import containerd, handmade, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime

pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests("trixie")]


def _podman(*words: str) -> str:
    done = subprocess.run(["podman", *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_a_container_of_podman_has_its_name_and_image(virtio: DrmDevice, tmp_path: Path) -> None:
    archive = tmp_path / "image.tar"
    archive.write_bytes(containerd.docker_archive())
    _podman("load", "-q", "-i", str(archive))
    options = ["--name=train", "--network=none", "--log-driver=none", f"--device={virtio.render}"]
    calls = ["--node", virtio.render, "--do", "getparam:40"]
    done = tally.parse(_podman("run", *options, containerd.IMAGE, *calls))
    wait.until("its name", partial(service.counted, "kubenpu_host_ioctl_total", unit="podman:train"), 30)
    assert service.counted("kubenpu_host_ioctl_total", unit="podman:train") == {"other": done.total}
    shown = json.loads(subprocess.run(["kubenpuctl", "pods", "--json"], capture_output=True, check=True).stdout)
    (row,) = [row for row in shown if row["unit"] == "podman:train"]
    assert (row["host_kind"], row["image"]) == ("container", containerd.IMAGE)
    assert service.select(service.rows(), "kubenpu_source_up", source="containers") == {"": 1}
    service.assert_conserved()
    _podman("rm", "train")


def test_a_container_of_nerdctl_has_the_image_that_containerd_knows(runtime: Runtime, virtio: DrmDevice) -> None:
    """nerdctl is not in Debian: its file with the name is made here, the container is containerd's own."""
    container, ctr = "7e" * 32, ["ctr", "-n", "k8s.io"]
    subprocess.run([*ctr, "container", "create", containerd.IMAGE, container], check=True)
    name = Path("/var/lib/nerdctl/1935db59/names/k8s.io/farm")
    name.parent.mkdir(parents=True)
    name.write_text(container)
    try:
        with handmade.cgroup(f"/system.slice/nerdctl-{container}.scope") as cgroup:
            calls = ["--node", virtio.render, "--do", "getparam:40"]
            done = handmade.run(str(cgroup.relative_to(handmade.CGROUP_ROOT)), *calls)
            wait.until("its name", partial(service.counted, "kubenpu_host_ioctl_total", unit="nerdctl:farm"), 30)
        assert service.counted("kubenpu_host_ioctl_total", unit="nerdctl:farm") == {"other": done.total}
        shown = json.loads(subprocess.run(["kubenpuctl", "pods", "--json"], capture_output=True, check=True).stdout)
        (row,) = [row for row in shown if row["unit"] == "nerdctl:farm"]
        assert (row["host_kind"], row["image"]) == ("container", containerd.IMAGE)
    finally:
        subprocess.run([*ctr, "container", "delete", container], check=True)
        name.unlink()
