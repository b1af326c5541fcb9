# SPDX-License-Identifier: Apache-2.0
"""What calls say in their arguments, through the kernel's own entry: exact by kind and by work, in a pod and outside.

Natively tests/bpf does the same to the counting code, with arguments of all sorts. Here are both hooks, and calls whose
argument the kernel writes over before they return.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fakes.cri_server import FakeCri
from tests.vm.guest import fake, handmade, service, tally, wait
from tests.vm.guest.drm import DrmDevice

# The oldest verifier, and cells by hash.
pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests("bookworm"), pytest.mark.every_machine]

GPU = fake.PCI[0]
NODE = "/dev/nvidia0"
GPU_ID = 4711
RM_ALLOC, XFER, SUBMIT = "0x2b", "0xd3", 0x49
CORE = Path("/usr/lib/python3/dist-packages/kubenpu/devices/drivers/core.toml")
DUMB = """
[argument.DRM_IOCTL_MODE_CREATE_DUMB]  # handle: 0 when the call begins, what was made when it returns
size = 32
offset = 16
bytes = 4
kinds = { context = [0] }
"""


def of_class(number: int) -> list[str]:
    return ["--argument", struct.pack("<12xI", number).hex()]


# (words of the workload, kind): an allocation, an address space, a channel, and the same in envelopes.
ALLOCATIONS = (
    (["--do", f"{RM_ALLOC}:700", *of_class(0x3E)], "alloc"),
    (["--do", f"{RM_ALLOC}:500", *of_class(0x90F1)], "map"),
    (["--do", f"{RM_ALLOC}:300", *of_class(0xC56F)], "context"),
    (["--do", f"{XFER}:110", "--envelope", RM_ALLOC, *of_class(0x40)], "alloc"),
    (["--do", f"{XFER}:60", "--envelope", "0x29"], "free"),
)


@pytest.fixture
def pretended() -> Iterator[None]:
    with fake.loaded(pci=[f"nvidia@{GPU}"], chr=["nvidia0:195:0:-"], gpu=[f"0@{GPU}"], drm=["panthor"]):
        Path(NODE).unlink(missing_ok=True)
        os.mknod(NODE, 0o666 | stat.S_IFCHR, os.makedev(195, 0))
        wait.until("the hook", lambda: service.mechanism("file_ioctl") != "off", 60)
        fake.wait_until_known(GPU, *(one.address for one in fake.devices() if one.driver == "panthor"))
        yield
    Path(NODE).unlink()
    service.take_file_hook_off()


@pytest.mark.deadline(300)
def test_kinds_and_work(fake_cri: FakeCri, pretended: None) -> None:
    (npu,) = (one for one in fake.devices() if one.driver == "panthor")
    three_jobs = ["--argument", struct.pack("<12xI", 3).hex()]
    submit = ["--node", npu.nodes[-1], "--do", f"{SUBMIT:#x}:400", "--threads", "4", *three_jobs]
    jobs = {"device": npu.address, "pod": "arguments", "work": "jobs"}
    wanted: dict[str, int] = {}
    with handmade.pod(fake_cri, "arguments") as pod:
        for call, kind in ALLOCATIONS:
            inside = handmade.run(pod, "--node", NODE, "--type", "F", *call, "--threads", "4")
            wanted[kind] = wanted.get(kind, 0) + inside.total
            tally.run("--node", NODE, "--type", "F", *call)
        done = handmade.run(pod, *submit)
        fake.set_parameter("err_nr", SUBMIT)
        failed = handmade.run(pod, *submit)
        fake.set_parameter("err_nr", -1)
        service.wait_for_owner(device=GPU, pod="arguments", container="main")
        assert service.counted("kubenpu_ioctl_total", device=GPU, pod="arguments") == wanted
        total = {kind: n + n // 4 for kind, n in wanted.items()}
        assert service.counted("kubenpu_device_ioctl_total", device=GPU) == total
        service.assert_exact(done + failed, {SUBMIT: "submit"}, npu.address, pod="arguments", container="main")
        assert (failed.total_errors, done.total) == (1600, 1600)
        assert service.value("kubenpu_submitted_work_total", **jobs) == 3 * done.total
        assert not [row for row in service.rows() if row.name.endswith("work_total") and row.labels["device"] == GPU]
    service.assert_conserved()


@pytest.mark.guests(*service.ARM64)
def test_addresses_that_carry_a_tag(pretended: None) -> None:
    """Of a program that tags its memory; a driver never sees the tag."""
    before = service.counted("kubenpu_device_ioctl_total", device=GPU)
    made: dict[str, int] = {}
    for call, kind in ALLOCATIONS:
        done = tally.run("--node", NODE, "--type", "F", *call, "--threads", "4", "--tagged")
        made[kind] = made.get(kind, before.get(kind, 0)) + done.total
    assert service.counted("kubenpu_device_ioctl_total", device=GPU) == made
    service.assert_conserved()


@pytest.mark.guests("bookworm")
def test_a_call_on_kfd_counts_for_the_gpu_that_it_names() -> None:
    with fake.loaded(drm=["amdgpu"], chr=["kfd:0:0"], topology=[str(GPU_ID)]):
        (gpu,) = (one for one in fake.devices() if one.driver == "amdgpu")
        wait.until("the hook", lambda: service.mechanism("file_ioctl") != "off", 60)
        fake.wait_until_known(gpu.address, "kfd")
        service.systemctl("reload", service.DAEMON)  # it may have looked before the module had shown the topology
        wait.until("its GPU", lambda: _alloc(GPU_ID, 1) and _allocated(gpu.address))
        before = _allocated(gpu.address), _allocated("kfd")
        named, unknown = _alloc(GPU_ID, 700), _alloc(GPU_ID + 1, 300)
        assert (_allocated(gpu.address), _allocated("kfd")) == (before[0] + named, before[1] + unknown)
        service.assert_conserved()
    service.take_file_hook_off()


def _alloc(gpu_id: int, times: int) -> int:
    words = ["--do", f"0x16:{times}", "--argument", struct.pack("<32xI4x", gpu_id).hex(), "--threads", "4"]
    return tally.run("--node", "/dev/kfd", "--type", "K", *words).total


def _allocated(device: str) -> int:
    return service.counted("kubenpu_device_ioctl_total", device=device).get("alloc", 0)


def test_what_the_kernel_writes_over(vgem: DrmDevice) -> None:
    ours = Path("/etc/kubenpu/drivers.d/core.toml")
    ours.parent.mkdir(parents=True, exist_ok=True)
    ours.write_text(CORE.read_text() + DUMB)
    try:
        service.systemctl("reload", service.DAEMON)
        service.probe("load")
        before = service.counted("kubenpu_device_ioctl_total", device=vgem.address)
        done = tally.run("--node", vgem.card, "--do", "create_dumb:200", "--threads", "4")
        after = service.counted("kubenpu_device_ioctl_total", device=vgem.address)
        grown = {kind: n - before.get(kind, 0) for kind, n in after.items() if n != before.get(kind, 0)}
        assert grown == {"context": done.calls[0xB2], "free": done.calls[0xB4]}
        assert done.calls[0xB2] == 800
    finally:
        ours.unlink()
        service.systemctl("reload", service.DAEMON, service.PROBE)
    service.assert_conserved()
