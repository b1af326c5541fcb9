# SPDX-License-Identifier: Apache-2.0
"""The rig itself, without KubeNPU: workloads do what they say they do, and pods look as a kubelet's pods look."""

from __future__ import annotations

import re
import subprocess
import time
from pathlib import Path

import pytest

from tests.vm.guest import handmade, pods, tally, wait
from tests.vm.guest.containerd import DRIVERS, OCI_RUNTIMES
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime

VIRTIO_SCRIPT = "getparam:100,resource_create:20,virtio_wait:30,virtio_map:40,execbuffer:5,get_cap:7,bad_close:3"
FLOOD = "getparam:1000000000"
VGEM_SCRIPT = "get_cap:10,create_dumb:20,map_dumb:30,vgem_fence:40"

pytestmark = pytest.mark.guests("trixie73")  # of the rig itself


def test_kernel_traces_drm() -> None:
    """What the product's first choice needs: module BTF, and a drm_ioctl that can be traced."""
    assert Path("/sys/kernel/btf/drm").exists()
    assert "drm_ioctl [drm]" in Path("/sys/kernel/tracing/available_filter_functions").read_text()


def test_workload_on_virtio(virtio: DrmDevice) -> None:
    """One buffer serves WAIT and MAP; each RESOURCE_CREATE is followed by GEM_CLOSE; EXECBUFFER fails without 3D."""
    done = tally.run("--node", virtio.render, "--do", VIRTIO_SCRIPT)
    assert done.calls == {0x09: 23, 0x0C: 7, 0x41: 40, 0x42: 5, 0x43: 100, 0x44: 21, 0x48: 30}
    assert {nr: count for nr, count in done.error.items() if count} == {0x09: 3, 0x42: 5}


def test_workload_on_vgem(vgem: DrmDevice) -> None:
    done = tally.run("--node", vgem.card, "--do", VGEM_SCRIPT)
    assert done.calls == {0x0C: 10, 0x41: 40, 0x42: 40, 0xB2: 21, 0xB3: 30, 0xB4: 20}
    assert done.total_errors == 0


def test_strace_agrees(virtio: DrmDevice, tmp_path: Path) -> None:
    """An independent witness: ptrace sees as many ioctls of DRM's type as the workload tells."""
    trace = tmp_path / "trace"
    command = ["strace", "-f", "-e", "trace=ioctl", "-o", str(trace), str(tally.WORKLOAD)]
    command += ["--node", virtio.render, "--do", "getparam:25,resource_create:5", "--threads", "4"]
    done = tally.parse(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    seen = [line for line in trace.read_text().splitlines() if " = " in line and virtio_call(line)]
    assert done.total == 4 * 35
    assert len(seen) == done.total


def virtio_call(line: str) -> bool:
    return re.search(r"ioctl\(\d+, (DRM_|_IOC\(.*0x64)|<\.\.\. ioctl resumed", line) is not None


def test_killed_workload_keeps_its_tally(virtio: DrmDevice, tmp_path: Path) -> None:
    """SIGKILL in the middle: all but the calls that were inside the kernel are known."""
    file = tmp_path / "tally"
    args = ["--node", virtio.render, "--do", FLOOD, "--threads", "4", "--tally", str(file)]
    with subprocess.Popen([str(tally.WORKLOAD), *args]) as process:
        wait.until("some calls", lambda: file.exists() and file.stat().st_size and tally.read_file(file).total > 1000)
        process.kill()
    kept = tally.read_file(file)
    assert kept.total > 1000
    assert 0 <= kept.inside[0x43] <= 4


@pytest.mark.parametrize("oci", OCI_RUNTIMES)
@pytest.mark.parametrize("driver", DRIVERS)
def test_pod_works_on_both_devices(runtime: Runtime, virtio: DrmDevice, vgem: DrmDevice, driver: str, oci: str) -> None:
    """Two containers of one pod, each with its own device and tally."""
    with pods.pod(runtime, f"worker-{driver}", driver=driver, oci=oci) as pod:
        on_virtio = pod.run("render", ["--node", virtio.render, "--do", VIRTIO_SCRIPT], devices=[virtio.render])
        on_vgem = pod.run("dumb", ["--node", vgem.card, "--do", VGEM_SCRIPT], devices=[vgem.card])
        assert (on_virtio.wait(), on_vgem.wait()) == (0, 0)
        assert on_virtio.tally().total == 226
        assert on_vgem.tally().total == 161
        assert Path(f"/sys/fs/cgroup{pod.cgroup}").is_dir()


@pytest.mark.parametrize(
    ("driver", "qos", "oci"),
    [
        ("systemd", "guaranteed", "crun"),
        ("systemd", "burstable", "runc"),
        ("systemd", "besteffort", "crun"),
        ("cgroupfs", "guaranteed", "runc"),
        ("cgroupfs", "burstable", "crun"),
        ("cgroupfs", "besteffort", "crun"),
    ],
)
def test_cgroup_has_the_kubelets_form(runtime: Runtime, driver: str, qos: str, oci: str) -> None:
    """The path that the kubelet's rules give is where the container's process really is."""
    with pods.pod(runtime, f"shape-{driver}-{qos}", driver=driver, qos=qos, oci=oci) as pod:
        container = pod.run("main", ["--hold"])
        (pid,) = container.pids()
        assert Path(f"/proc/{pid}/cgroup").read_text() == f"0::{container.cgroup}\n"
        assert container.stop() == 0


def test_cgroup_below_the_scope(runtime: Runtime) -> None:
    """What crun does when nobody tells it otherwise, as on CRI-O nodes: one more level below the scope."""
    with pods.pod(runtime, "nested") as pod:
        (pid,) = pod.run("main", ["--hold"], subgroup="container").pids()
        assert Path(f"/proc/{pid}/cgroup").read_text().endswith(".scope/container\n")


def test_handmade_cgroup(virtio: DrmDevice) -> None:
    """A cgroup of any name without a runtime: for spellings and for many short lives."""
    path = "/kubepods/besteffort/pod8f0f5c0a-5f6f-4f3e-9d53-0f4c2a7a1b11/0123456789abcdef"
    with handmade.cgroup(path):
        assert handmade.run(path, "--node", virtio.render, "--do", "getparam:10").total == 10
    assert not Path("/sys/fs/cgroup/kubepods/besteffort/pod8f0f5c0a-5f6f-4f3e-9d53-0f4c2a7a1b11").exists()


def test_device_rules_hold(runtime: Runtime, virtio: DrmDevice) -> None:
    """A container without the device cannot open it: what a pod is not given it cannot use."""
    with pods.pod(runtime, "outsider") as pod:
        container = pod.run("main", ["--node", virtio.render, "--do", "getparam"])
        assert container.wait() == 1


def test_stop_and_kill(runtime: Runtime, virtio: DrmDevice, tmp_path: Path) -> None:
    """SIGTERM ends a workload with its tally printed, SIGKILL with its tally in the file."""
    flood = ["--node", virtio.render, "--do", FLOOD]
    with pods.pod(runtime, "ending") as pod:
        stopped = pod.run("stopped", flood, devices=[virtio.render])
        killed = pod.run(
            "killed", [*flood, "--tally", "/tally/file"], devices=[virtio.render], mounts=[(tmp_path, "/tally")]
        )
        wait.until("calls", lambda: (tmp_path / "file").exists() and tally.read_file(tmp_path / "file").total > 100)
        assert stopped.stop() == 0
        killed.kill()
        assert stopped.tally().total > 0
        assert tally.read_file(tmp_path / "file").inside[0x43] <= 1


def test_times(runtime: Runtime, virtio: DrmDevice) -> None:
    """What a pod and a container cost under emulation: no judgement, a line in the output for whoever plans cases."""
    began = time.monotonic()
    with pods.pod(runtime, "timed") as pod:
        started = time.monotonic()
        for number in range(5):
            args = ["--node", virtio.render, "--do", "getparam:50"]
            assert pod.run(f"short-{number}", args, devices=[virtio.render]).wait() == 0
        done = time.monotonic()
    print(f"pod {started - began:.2f} s, container {(done - started) / 5:.2f} s, end {time.monotonic() - done:.2f} s")
