# SPDX-License-Identifier: Apache-2.0
"""Accelerators that are plain character devices: found, hooked when they appear, and counted exactly, call by call.

The devices are pretended by tests/vm/module, with the names, numbers and procfs files of the real drivers.
"""

from __future__ import annotations

import json
import os
import re
import stat
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from tests.vm.guest import fake, handmade, pods, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import VIRTIO_KINDS

pytestmark = pytest.mark.usefixtures("counting")

GPU, TPU = fake.PCI
DEVICES = {
    "pci": [f"nvidia@{GPU}", f"apex@{TPU}"],
    "drm": [f"nvidia-drm@{GPU}"],
    "chr": ["nvidia0:195:0:-", "nvidiactl:195:255:-", "nvidia-uvm:0:0:-", "kfd:0:0", f"apex_0:120:0:apex@{TPU}"],
    "gpu": [f"0@{GPU}"],
}
HOOK, BEST = "file_ioctl", service.BEST_FILE_MECHANISM
# Written down here, so that the product's tables are not compared with themselves.
NVIDIA = {0x27: "alloc", 0x29: "free", 0x4E: "map", 0xD6: "other", 0x41: "wait"}
UVM = {0x01: "context", 0x21: "map", 0x22: "free", 0x25: "context", 0x09: "other"}
KFD = {0x02: "context", 0x0C: "wait", 0x16: "alloc", 0x17: "free", 0x18: "map", 0x01: "other"}
GASKET = {0x08: "map", 0x0B: "alloc", 0x00: "other"}
# (device label, node, type byte, kinds)
PLAIN = (
    (GPU, "/dev/nvidia0", "F", NVIDIA),
    ("nvidiactl", "/dev/nvidiactl", "F", NVIDIA),
    ("kfd", "/dev/kfd", "K", KFD),
    (TPU, "/dev/apex_0", "0xdc", GASKET),
)


def make_node(name: str, number: int) -> str:
    """What udev does not make, because the driver shows nothing in sysfs."""
    path = Path("/dev", name)
    path.unlink(missing_ok=True)
    os.mknod(path, 0o666 | stat.S_IFCHR, number)
    return str(path)


def uvm_major() -> int:
    found = re.search(r"^ *(\d+) nvidia-uvm$", Path("/proc/devices").read_text(), re.M)
    assert found
    return int(found[1])


@pytest.fixture(scope="module")
def devices(counting: None) -> Iterator[None]:
    """The pretended devices, known and hooked: by udev, nobody starts anything. Loaded once, as each loading of the
    module makes kubenpu-probe run."""
    with fake.loaded(**DEVICES):
        made = [make_node("nvidia0", os.makedev(195, 0)), make_node("nvidiactl", os.makedev(195, 255))]
        made.append(make_node("nvidia-uvm", os.makedev(uvm_major(), 0)))
        wait.until("the hook", lambda: service.mechanism(HOOK) == BEST, 60)
        fake.wait_until_known(GPU, TPU, "nvidiactl", "nvidia-uvm", "kfd")
        yield
    for path in made:
        Path(path).unlink()
    service.take_file_hook_off()


def script(kinds: Mapping[int, str], times: int = 1) -> str:
    return ",".join(f"{nr:#x}:{times * (1 + index % 5)}" for index, nr in enumerate(sorted(kinds)))


def counted(device: str) -> dict[str, int]:
    return service.counted("kubenpu_device_ioctl_total", device=device)


def grown(device: str, before: Mapping[str, int]) -> dict[str, int]:
    return {kind: n - before.get(kind, 0) for kind, n in counted(device).items() if n != before.get(kind, 0)}


@pytest.mark.every_machine
def test_no_hook_without_such_a_device() -> None:
    """And this is no failure."""
    assert not service.select(service.rows(), "kubenpu_hook_up", hook=HOOK)
    service.probe("load")
    (hook,) = (h for h in json.loads(service.STATE.read_text())["hooks"] if h["hook"] == HOOK)
    assert (hook["mechanism"], hook["reason"], hook["needed"]) == ("off", "no such device", False)
    assert not list(Path("/sys/fs/bpf/kubenpu/1").glob(f"{HOOK}_*_link"))


def test_exact_in_a_pod_and_outside_at_full_rate(runtime: Runtime, virtio: DrmDevice, devices: None) -> None:
    """Four threads on each node at once, in a pod and outside, beside a flood through drm that stays exact too."""
    assert service.value("kubenpu_hook_up", hook=HOOK, mechanism=BEST) == 1
    nodes = [node for _, node, _, _ in PLAIN]
    before = {device: counted(device) for device, *_ in PLAIN}
    drm = ["--node", virtio.render, "--do", "getparam:1000000000", "--threads", "2"]
    with pods.pod(runtime, "plain") as pod:
        flood = pod.run("drm", drm, devices=[virtio.render])
        container = pod.run("main", ["--hold"], devices=nodes)
        for device, node, kind_of_type, kinds in PLAIN:
            words = ["--node", node, "--type", kind_of_type, "--do", script(kinds, 1000), "--threads", "4"]
            inside, outside = handmade.run(container.cgroup, *words), tally.run(*words)
            assert inside.total_errors == outside.total_errors == 0
            service.wait_for_owner(device=device, pod="plain", container="main")
            got = service.counted("kubenpu_ioctl_total", device=device, pod="plain", container="main")
            assert got == service.by_kind(inside.calls, kinds), node
            assert grown(device, before[device]) == service.by_kind((inside + outside).calls, kinds), node
        assert (container.stop(), flood.stop()) == (0, 0)
        service.assert_exact(flood.tally(), VIRTIO_KINDS, virtio.address, pod="plain", container="drm")
    service.assert_conserved()


@pytest.mark.every_machine
def test_how_calls_end_is_absent_not_zero(devices: None) -> None:
    fake.set_parameter("err_nr", 0x16)
    done = tally.run("--node", "/dev/kfd", "--type", "K", "--do", "0x16:5,0xc:3")
    assert done.total_errors == 5
    unit = {"unit": "kubenpu-job.service", "device": "kfd"}
    wait.until("the unit", lambda: service.counted("kubenpu_host_ioctl_total", **unit).get("alloc", 0) >= 5)
    rows = service.rows()
    assert not service.select(rows, "kubenpu_host_ioctl_errors_total", **unit)
    assert not service.select(rows, "kubenpu_host_ioctl_wait_seconds_total", **unit)
    fake.set_parameter("err_nr", -1)


@pytest.mark.every_machine
def test_whole_commands_and_two_type_bytes(devices: None) -> None:
    before = {device: counted(device) for device in ("nvidia-uvm", TPU)}
    commands = {0x30000001: 3, 0x21: 5, 0x22: 7, 0x25: 2, 0x09: 4}
    done = tally.run("--node", "/dev/nvidia-uvm", "--do", ",".join(f"={cmd:#x}:{n}" for cmd, n in commands.items()))
    assert grown("nvidia-uvm", before["nvidia-uvm"]) == service.by_kind(done.calls, UVM)
    done = tally.run("--node", "/dev/apex_0", "--type", "0x7f", "--do", "0x8:6,0x0:2")
    assert grown(TPU, before[TPU]) == {"other": done.total}  # map with the other type byte


@pytest.mark.every_machine
def test_calls_of_32_bit_programs(devices: None) -> None:
    before = counted("kfd")
    done = tally.run("--node", "/dev/kfd", "--type", "K", "--do", "0x16:50,0xc:30", "--threads", "4", "--compat")
    assert done.total_errors == 0
    assert grown("kfd", before) == {"alloc": 200, "wait": 120}


@pytest.mark.every_machine
def test_calls_that_the_driver_never_sees(devices: None) -> None:
    """FIONBIO and FIOCLEX are the VFS's, whatever the file."""
    before = counted("kfd")
    tally.run("--node", "/dev/kfd", "--do", "=0x5421:9,=0x5451:9")
    assert grown("kfd", before) == {}


@pytest.mark.every_machine
def test_every_mechanism_counts_the_same(devices: None) -> None:
    """Ends with the best one. A kernel that preempts programs refuses fentry."""
    words = ["--node", "/dev/kfd", "--type", "K", "--do", script(KFD, 500), "--threads", "4"]
    for name in dict.fromkeys(("kprobe", *(["fentry"] if service.BEST_MECHANISM == "fentry" else []), BEST)):
        service.probe("unload")
        service.probe("load", "--mechanism", name)
        assert service.mechanism(HOOK) == name
        before = counted("kfd")
        done = tally.run(*words) + tally.run(*words, "--compat")
        assert grown("kfd", before) == service.by_kind(done.calls, KFD), name
        assert service.dropped()["program_skipped"] == 0


@pytest.mark.guests("trixie")  # the swap is the same on each kernel; drm's is tried on all
def test_replacing_the_program_under_load(devices: None) -> None:
    before = counted("kfd")
    words = [str(tally.WORKLOAD), "--node", "/dev/kfd", "--type", "K", "--do", script(KFD), "--threads", "4"]
    with subprocess.Popen([*words, "--seconds", "600"], stdout=subprocess.PIPE, text=True) as load:
        for _ in range(4):
            service.systemctl("reload", service.PROBE)
        load.terminate()
        done = tally.parse(load.communicate()[0])
    assert grown("kfd", before) == service.by_kind(done.calls, KFD)
    service.assert_conserved()


@pytest.mark.guests("trixie")  # of udev, not of the kernel
def test_a_driver_that_comes_back_goes_on(devices: None) -> None:
    """With another major; the label is the device's. The last case: it leaves the devices like this."""
    before = counted(TPU)
    done = tally.run("--node", "/dev/apex_0", "--type", "0xdc", "--do", "0x8:40")
    fake.unload()
    wait.until("its end", lambda: TPU not in service.devices(), 10)
    fake.load(**{**DEVICES, "chr": ["other:120:0", f"apex_0:0:0:apex@{TPU}"]})
    fake.wait_until_known(TPU)
    done += tally.run("--node", "/dev/apex_0", "--type", "0xdc", "--do", "0x8:60")
    assert grown(TPU, before) == {"map": done.total} == {"map": 100}
