# SPDX-License-Identifier: Apache-2.0
"""Plain containers of a real engine: podman, as root, whose containers are named by the state that it keeps."""

from __future__ import annotations

import json
import subprocess
from functools import partial
from pathlib import Path

import pytest

from tests.vm.guest import containerd, service, tally, wait
from tests.vm.guest.drm import DrmDevice

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
