# SPDX-License-Identifier: Apache-2.0
"""The system bus goes and comes again while kubenpud runs. The last cases of a guest: other services lose it, too."""

from __future__ import annotations

import pytest

from tests.vm.guest import bus, service, tally, wait
from tests.vm.guest.drm import DrmDevice

pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests("trixie")]  # one that can be stopped

BUS = ("dbus.socket", "dbus-broker.service")


def test_the_bus_is_lost_and_found(virtio: DrmDevice) -> None:
    """Counts are served without it; when it is back, so is the name, by the same process."""
    before = service.main_pid()
    service.systemctl("stop", *BUS)
    try:
        wait.until("the loss", lambda: service.value("kubenpu_source_up", source="dbus") == 0)
        counted = service.counted("kubenpu_device_ioctl_total", device=virtio.address).get("other", 0)
        done = tally.run("--node", virtio.render, "--do", "getparam:10")
        now = service.counted("kubenpu_device_ioctl_total", device=virtio.address)
        assert now["other"] == counted + done.total
    finally:
        service.systemctl("start", *BUS)
    wait.until("the name", lambda: service.value("kubenpu_source_up", source="dbus") == 1)
    assert bus.version(by=bus.NOBODY).returncode == 0
    assert service.main_pid() == before
