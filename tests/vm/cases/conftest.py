# SPDX-License-Identifier: Apache-2.0
"""What cases share inside a guest: devices and a container runtime, made once; and a look for what a case left over."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.vm.guest import drm, wait

if TYPE_CHECKING:
    from tests.fakes.cri_server import FakeCri
    from tests.vm.guest.pods import Runtime

FAKE_SOCKET = Path("/run/fake-cri.sock")


@pytest.fixture(scope="session")
def virtio() -> drm.DrmDevice:
    return drm.virtio_gpu()


@pytest.fixture(scope="session")
def vgem() -> drm.DrmDevice:
    return drm.vgem()


@pytest.fixture(scope="session")
def runtime() -> Iterator[Runtime]:
    """containerd with the workload's image."""
    from tests.vm.guest import containerd, pods

    containerd.start()
    connection = pods.Runtime()
    yield connection
    connection.close()


@pytest.fixture(autouse=True)
def nothing_left() -> Iterator[None]:
    """A case leaves no pod, no child process and no open device."""
    yield
    wait.until("an end of the case's pods", lambda: not _pod_cgroups(), seconds=20)
    assert not _children(), "child processes left"
    assert not _open_devices(), "device nodes left open"


def _pod_cgroups() -> list[Path]:
    root = Path("/sys/fs/cgroup")
    return [path for path in (*root.glob("kubepods.slice/**/*pod*_*.slice"), *root.glob("kubepods/**/pod*"))]


def _children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _open_devices() -> list[str]:
    names = (str(link.resolve()) for link in Path("/proc/self/fd").iterdir())
    return [name for name in names if name.startswith("/dev/dri/")]


@pytest.fixture(scope="session")
def counting(request: pytest.FixtureRequest, virtio: drm.DrmDevice, vgem: drm.DrmDevice) -> Iterator[None]:
    """KubeNPU's units, started once; every case finds both devices known and counting. A runtime if there is one."""
    from tests.vm.guest import containerd, service

    if containerd.PROGRAM.exists():
        request.getfixturevalue("runtime")
    service.compile_modules()
    service.start()
    wait.until("both devices", lambda: len(service.devices()) == 2)
    yield
    service.stop()
    assert not list(Path("/sys/fs/bpf").glob("kubenpu*")), "pins left"


@pytest.fixture(scope="module")
def fake_cri(counting: None) -> Iterator[FakeCri]:
    """A runtime for cgroups made by hand, beside containerd where that is."""
    from tests.fakes.cri_server import FakeCri
    from tests.vm.guest import containerd, service

    server = FakeCri(FAKE_SOCKET)
    server.start()
    sockets = [str(path) for path in (containerd.SOCKET, FAKE_SOCKET) if path.exists()]
    with service.configured(f"identity.cri_sockets = {sockets}\n"):
        yield server
    server.stop()
