# SPDX-License-Identifier: Apache-2.0
"""Devices that VFIO hands out: files without a device number, counted for the device that they are.

The device is pretended by tests/vm/module/fakevfio.c; group, container and file are the kernel's own.
"""

from __future__ import annotations

import ctypes
import os
import struct
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from fcntl import ioctl
from pathlib import Path

import pytest

from tests.vm.guest import fake, service, wait

pytestmark = pytest.mark.usefixtures("counting")

DEVICE, HOOK = fake.PCI[0], "file_ioctl"
SET_IOMMU, SET_CONTAINER, GET_DEVICE_FD, DEVICE_GET_INFO, DEVICE_FEATURE = 0x3B66, 0x3B68, 0x3B6A, 0x3B6B, 0x3B75
CALLS = {DEVICE_GET_INFO: 700, DEVICE_FEATURE: 30}


@pytest.fixture
def device() -> Iterator[None]:
    """Known and hooked: by udev, nobody starts anything."""
    subprocess.run(["modprobe", "-a", "vfio_iommu_type1"], check=True)
    subprocess.run(["modprobe", "--first-time", "fakevfio", f"address={DEVICE}"], check=True)
    try:
        wait.until("the hook", lambda: service.mechanism(HOOK) == "lsm", 60)
        fake.wait_until_known(DEVICE)
        yield
    finally:
        subprocess.run(["modprobe", "-r", "fakevfio"], check=True)
        service.take_file_hook_off()


@contextmanager
def handed_out() -> Iterator[int]:
    """The file of the device, from its group in a container."""
    group_number = (Path("/sys/bus/pci/devices") / DEVICE / "iommu_group").readlink().name
    container, group = (os.open(f"/dev/vfio/{name}", os.O_RDWR) for name in ("vfio", group_number))
    ioctl(group, SET_CONTAINER, struct.pack("i", container))
    ioctl(container, SET_IOMMU, 1)
    libc = ctypes.CDLL(None, use_errno=True)
    opened = libc.ioctl(group, GET_DEVICE_FD, ctypes.c_char_p(DEVICE.encode()))  # fcntl's gives no number back
    assert opened >= 0, os.strerror(ctypes.get_errno())
    try:
        yield opened
    finally:
        for fd in (opened, group, container):
            os.close(fd)


def call(fd: int, cmd: int, times: int) -> None:
    for _ in range(times):
        with suppress(OSError):  # a file of another kind, or an argument of the wrong size: the call was made
            ioctl(fd, cmd, b"\0" * 20)


def counted() -> dict[str, int]:
    return service.counted("kubenpu_device_ioctl_total", device=DEVICE)


@pytest.mark.guests(
    "trixie73"
)  # what such a file points to is another thing since 6.6; test_char_devices.py loads it on 6.1
def test_a_device_that_vfio_hands_out_is_counted(device: None, tmp_path: Path) -> None:
    before = counted()
    with handed_out() as fd:
        assert os.fstat(fd).st_rdev == 0
        for cmd, times in CALLS.items():
            call(fd, cmd, times)
        found = {kind: n - before.get(kind, 0) for kind, n in counted().items()}
        assert found == {"context": 2, "other": sum(CALLS.values())}  # of the group: its container, its device
    pretender = tmp_path / "[vfio-device]"
    pretender.touch()
    with pretender.open() as file:
        call(file.fileno(), DEVICE_GET_INFO, 5)
    for fd in (os.memfd_create("[vfio-device]"), os.eventfd(0)):
        call(fd, DEVICE_GET_INFO, 5)
        os.close(fd)
    assert counted()["other"] - before.get("other", 0) == sum(CALLS.values())
    service.assert_conserved()
