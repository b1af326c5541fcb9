# SPDX-License-Identifier: Apache-2.0
"""A real client: programs that draw through Mesa on a virtio_gpu with 3D, counted as independent witnesses count them.

What Mesa calls and how often is its own business; how many frames were drawn is known.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from contextlib import ExitStack
from pathlib import Path

import pytest

from tests.vm.guest import mesa, pods, service, witness
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import VIRTIO_KINDS

pytestmark = [pytest.mark.guests("trixie-gl"), pytest.mark.usefixtures("counting", "program")]

EXECBUFFER = 0x42
FRAMES = (1, 2, 20, 60)  # a pod each
FRAMES_OUTSIDE = 7
STRACE = ("/usr/bin/strace", "-ff", "-X", "raw", "-e", "trace=ioctl", "-o", f"{mesa.SHARE}/trace")
DRM_CALL = re.compile(r"^ioctl\(\d+, 0x[0-9a-f]{4}64([0-9a-f]{2}), .*\) += (-?\d+)", re.M)


@pytest.fixture(scope="module")
def program() -> None:
    mesa.compile_program()


@pytest.fixture
def gate(tmp_path: Path) -> Path:
    fifo = tmp_path / "gate"
    os.mkfifo(fifo)
    return fifo


@pytest.mark.deadline(300)
def test_pods_and_a_unit_that_draw_at_once(runtime: Runtime, virtio: DrmDevice, gate: Path) -> None:
    """Every call of each by its kind; and the device's total, which is counted apart, is what all made together."""
    before = _device_total(virtio)
    with witness.watching(), ExitStack() as stack:
        several = [(frames, stack.enter_context(pods.pod(runtime, f"draws-{frames}"))) for frames in FRAMES]
        drawings = [mesa.in_pod(pod, virtio.render, frames, gate) for frames, pod in several]
        drawings.append(stack.enter_context(mesa.in_unit("draws.service", virtio.render, FRAMES_OUTSIDE, gate)))
        mesa.let_draw(drawings, gate)
        seen, total = witness.seen(), _device_total(virtio) - before
        assert seen.keys() == {one.pid() for one in drawings}
        for one in drawings:
            calls = service.by_kind(seen[one.pid()], VIRTIO_KINDS)
            assert {"submit", "alloc", "wait"} <= calls.keys()
            assert one.counted() == calls, one.labels
        assert total == sum((Counter(one.counted()) for one in drawings), Counter())
        # Each frame is one submission; what comes before and after them is the same for all.
        assert len({seen[one.pid()][EXECBUFFER] - one.frames for one in drawings}) == 1
    service.assert_conserved()


def test_strace_says_the_same(runtime: Runtime, virtio: DrmDevice, gate: Path) -> None:
    """A witness that knows what came back."""
    with pods.pod(runtime, "traced") as pod:
        drawing = mesa.in_pod(pod, virtio.render, 5, gate, under=STRACE)
        mesa.let_draw([drawing], gate)
        traces = "".join(trace.read_text() for trace in gate.parent.glob("trace.*"))
        calls = [(int(number, 16), int(result)) for number, result in DRM_CALL.findall(traces)]
        errors = Counter(number for number, result in calls if result < 0)
        assert errors
        assert drawing.counted() == service.by_kind(Counter(number for number, _ in calls), VIRTIO_KINDS)
        failed = service.counted("kubenpu_ioctl_errors_total", **drawing.labels)
        assert failed == service.by_kind(errors, VIRTIO_KINDS)
    service.assert_conserved()


def _device_total(device: DrmDevice) -> Counter[str]:
    return Counter(service.counted("kubenpu_device_ioctl_total", device=device.address))
