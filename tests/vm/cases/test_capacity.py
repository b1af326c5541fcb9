# SPDX-License-Identifier: Apache-2.0
"""What happens when there are more cgroups than counter cells."""

from __future__ import annotations

from contextlib import ExitStack

import pytest

from tests.vm.guest import handmade, service
from tests.vm.guest.drm import DrmDevice

pytestmark = pytest.mark.usefixtures("counting")


@pytest.mark.guests("bookworm")  # the table is the same everywhere
def test_the_table_is_full(virtio: DrmDevice) -> None:
    """R05. What was admitted first stays exact; the rest is one declared loss; used and maximum are shown."""
    with service.configured("kernel.max_slots = 64\n"), ExitStack() as stack:
        paths = [f"/full.slice/full-{number}.service" for number in range(80)]
        for path in paths:
            stack.enter_context(handmade.cgroup(path))
        for _ in range(2):
            for path in paths:
                handmade.run(path, "--node", virtio.render, "--do", "getparam:10")
        assert service.value("kubenpu_slots_max") == 64
        assert service.value("kubenpu_slots_used") == 64
        units = {
            r.labels["unit"]: r.value
            for r in service.rows()
            if r.name == "kubenpu_host_ioctl_total"
            and r.labels["kind"] == "other"
            and r.labels["unit"].startswith("full-")
        }
        assert len(units) == 64
        assert set(units.values()) == {20}
        assert service.dropped()["slots_full"] == 16 * 20
        assert service.value("kubenpu_attribution_imbalance", device=virtio.address) == 0
