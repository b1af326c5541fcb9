# SPDX-License-Identifier: Apache-2.0
"""Nothing is lost and nothing doubled when parts stop, die, are replaced, or when devices come and go."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from tests.vm.guest import drm, pods, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import VGEM_KINDS, VIRTIO_KINDS

pytestmark = pytest.mark.usefixtures("counting")

FLOOD = "getparam:1000000000"
FLAGS = Path("/etc/default/kubenpu")


@pytest.mark.guests("trixie")  # user space, like those below
def test_a_pod_that_began_and_ended_while_kubenpud_was_down(runtime: Runtime, virtio: DrmDevice) -> None:
    service.systemctl("stop", service.DAEMON)
    with pods.pod(runtime, "unseen") as pod:
        container = pod.run("main", ["--node", virtio.render, "--do", "getparam:123"], devices=[virtio.render])
        assert container.wait() == 0
        service.systemctl("start", service.DAEMON)
        service.assert_exact(container.tally(), VIRTIO_KINDS, virtio.address, pod="unseen", container="main")
    service.assert_conserved()


@pytest.mark.guests("trixie")  # of the daemon, not of the kernel
def test_kill_nine_under_load_and_names_survive(runtime: Runtime, virtio: DrmDevice) -> None:
    """kubenpud dies three times in a flood; later the pod is removed and kubenpud dies again: its name stays."""
    with pods.pod(runtime, "steady") as pod:
        flood = pod.run("flood", ["--node", virtio.render, "--do", FLOOD, "--threads", "4"], devices=[virtio.render])
        service.wait_for_owner(pod="steady", container="flood")
        for _ in range(3):
            before = service.counted("kubenpu_ioctl_total", pod="steady")["other"]
            service.kill_daemon()
            service.wait_for_owner(pod="steady", container="flood")
            assert service.counted("kubenpu_ioctl_total", pod="steady")["other"] >= before
        assert flood.stop() == 0
        done = flood.tally()
        service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod="steady", container="flood")
    service.kill_daemon()
    service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod="steady", container="flood")
    service.assert_conserved()


@pytest.mark.guests("bookworm", "trixie")
@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [("--web.listen-address=nonsense", 78, "nonsense"), ("--no-such-flag", 2, "")],
    ids=["setting", "flag"],
)
def test_what_is_wrong_at_the_start_is_failed_at_once(flags: str, code: int, said: str) -> None:
    """And says why, until it is put right."""
    shipped = FLAGS.read_text()
    service.systemctl("stop", service.DAEMON)
    FLAGS.write_text(f'ARGS="{flags}"\n')
    try:
        assert subprocess.run(["systemctl", "start", service.DAEMON], capture_output=True, check=False).returncode != 0
        assert [service.show(service.DAEMON, name) for name in ("ActiveState", "ExecMainStatus", "NRestarts")] == [
            "failed",
            str(code),
            "0",
        ]
        assert said in service.show(service.DAEMON, "StatusText")
    finally:
        FLAGS.write_text(shipped)
        service.systemctl("restart", service.DAEMON)
    assert service.show(service.DAEMON, "ActiveState") == "active"


@pytest.mark.guests("bookworm", "trixie73")  # with fentry and without
@pytest.mark.deadline(400)
def test_replacing_the_object_under_load(runtime: Runtime, virtio: DrmDevice) -> None:
    """`systemctl reload kubenpu-probe` loads an object anew and swaps the code behind the attached hook.

    kprobes may be skipped beside a system call on a map that is preempted: that is declared then, and not the rule.
    """
    for attempt in range(3):
        if replaced_exactly(runtime, virtio, f"handover-{attempt}"):
            break
        assert service.BEST_MECHANISM != "fentry"
        service.probe("unload")
        service.probe("load")
    else:
        raise AssertionError("calls were skipped three times")
    service.assert_conserved()


def replaced_exactly(runtime: Runtime, virtio: DrmDevice, name: str) -> bool:
    """Four times in a flood. False: as many calls are missing as were declared lost, at most."""
    before = attached_body()  # not looked at meanwhile: it is such a system call
    with pods.pod(runtime, name) as pod:
        script = "getparam:50,resource_create:5,virtio_wait:5,bad_close:3"
        args = ["--node", virtio.render, "--do", script, "--threads", "8", "--seconds", "600"]
        flood = pod.run("flood", args, devices=[virtio.render])
        service.wait_for_owner(pod=name, container="flood")
        for _ in range(4):
            service.systemctl("reload", service.PROBE)
        assert flood.stop() == 0
        assert attached_body() != before
        skipped, done = service.dropped()["program_skipped"], flood.tally()
        if skipped:
            counted = service.counted("kubenpu_ioctl_total", device=virtio.address, pod=name)
            assert 0 <= done.total - sum(counted.values()) <= skipped
        else:
            service.assert_exact(done, VIRTIO_KINDS, virtio.address, pod=name, container="flood")
    return not skipped


def attached_body() -> str:
    """Id of the program behind the exit hook."""
    command = ["bpftool", "-j", "map", "dump", "pinned", "/sys/fs/bpf/kubenpu/1/drm_ioctl_exit_body"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def counted_for(*devices: DrmDevice) -> bool:
    """Whether kubenpud shows these and no others, and the kernel counts for all their nodes."""
    return {d.address for d in devices} == service.devices() and all(service.counts(d.card, d.render) for d in devices)


@pytest.mark.every_machine
def test_a_driver_is_removed_and_comes_back(virtio: DrmDevice) -> None:
    """The device label stays with the device, whatever its minor is; its counters go on."""
    device = drm.vgem()
    before = service.counted("kubenpu_device_ioctl_total", device="vgem")
    done = tally.run("--node", device.card, "--do", "get_cap:10,create_dumb:5")
    subprocess.run(["modprobe", "-r", "vgem"], check=True)
    wait.until("vgem's end", lambda: "vgem" not in service.devices(), 10)
    device = drm.vgem()
    wait.until("vgem's return", lambda: counted_for(virtio, device), 10)
    done += tally.run("--node", device.card, "--do", "get_cap:10,create_dumb:5")
    after = service.counted("kubenpu_device_ioctl_total", device="vgem")
    grown = {kind: after[kind] - before.get(kind, 0) for kind in after if after[kind] != before.get(kind, 0)}
    assert grown == service.by_kind(done.calls, VGEM_KINDS)
    service.assert_conserved()


def test_minors_swap(virtio: DrmDevice) -> None:
    """R15. Both devices are unbound and come back in the other order: counts follow the bus address."""
    vgem = drm.vgem()
    wait.until("vgem", lambda: "vgem" in service.devices(), 10)
    before = {d: service.counted("kubenpu_device_ioctl_total", device=d) for d in (virtio.address, "vgem")}
    done = tally.run("--node", virtio.render, "--do", "getparam:100")
    minors = {virtio.render, vgem.render}
    subprocess.run(["modprobe", "-r", "vgem"], check=True)
    drm.bind(virtio.address, "unbind")
    wait.until("an empty node", lambda: not service.devices(), 20)
    swapped_vgem = drm.vgem()
    drm.bind(virtio.address, "bind")
    swapped_virtio = drm.virtio_gpu()
    assert {swapped_virtio.render, swapped_vgem.render} == minors
    assert swapped_virtio.render != virtio.render, "the minors did not swap"
    wait.until("both again", lambda: counted_for(swapped_virtio, swapped_vgem), 5)
    done += tally.run("--node", swapped_virtio.render, "--do", "getparam:100")
    after = {d: service.counted("kubenpu_device_ioctl_total", device=d) for d in (virtio.address, "vgem")}
    grown = after[virtio.address].get("other", 0) - before[virtio.address].get("other", 0)
    assert grown == done.total == 200
    assert after["vgem"] == before["vgem"]
    service.assert_conserved()
    _restore(virtio)


def _restore(virtio: DrmDevice) -> None:
    """Back to the minors that the session's fixtures know."""
    subprocess.run(["modprobe", "-r", "vgem"], check=True)
    drm.bind(virtio.address, "unbind")
    drm.bind(virtio.address, "bind")
    assert drm.virtio_gpu() == virtio
    vgem = drm.vgem()
    wait.until("both again", lambda: counted_for(virtio, vgem), 20)


@pytest.mark.guests("trixie")  # of units and udev, not of the kernel
def test_stopped_is_stopped_and_drm_may_come_later(virtio: DrmDevice) -> None:
    """No hook is left when the units stop, drm can be unloaded; started without drm the hook is off and says so, and
    is on as soon as a DRM driver is loaded."""
    service.stop()
    assert not Path("/sys/fs/bpf/kubenpu").exists()
    drm.unload(virtio.address)
    try:
        service.start()
        assert service.mechanism() == "off"
        assert service.reason() == "drm is not loaded"
        assert service.show(service.DAEMON, "StatusText") == "0 accelerators, drm_ioctl off (drm is not loaded)"
        assert service.healthy()
        found = service.rows()
        assert service.select(found, "kubenpu_hook_up", hook="drm_ioctl") == {"": 0}
        assert not [r for r in found if "ioctl" in r.name and r.name != "kubenpu_unattributed_ioctls"]
    finally:
        subprocess.run(["modprobe", "virtio_gpu"], check=True)
    device = drm.virtio_gpu()
    wait.until("the hook", lambda: service.mechanism() == service.BEST_MECHANISM, 30)
    wait.until("the device", lambda: virtio.address in service.devices(), 10)
    done = tally.run("--node", device.render, "--do", "getparam:10")
    assert service.counted("kubenpu_device_ioctl_total", device=virtio.address) == {"other": done.total}
    vgem = drm.vgem()
    wait.until("both devices", lambda: counted_for(virtio, vgem), 10)


@pytest.mark.guests("trixie")  # of the package, not of the kernel
def test_a_plain_user_may_look(virtio: DrmDevice) -> None:
    """kubenpuctl devices prints the table of the interface; whois, drivers and pods need no privilege either."""
    listing = _as_nobody("devices")
    header, *lines = listing.splitlines()
    assert header.split() == ["DRIVER", "PCI", "ID", "ADDRESS", "NODES", "NUMA", "VENDOR"]
    card, render = (os.minor(Path(node).stat().st_rdev) for node in (virtio.card, virtio.render))
    row = ["virtio-pci", "1AF4:1050", "0000:00:02.0", f"226:{card},226:{render}", "-", "virtio_gpu"]
    assert row in [line.split() for line in lines]
    assert _as_nobody("whois", str(service.main_pid())).count("kubenpud.service") == 2
    assert "virtio_gpu" in _as_nobody("drivers")
    assert "virtio_gpu" in _as_nobody("pods", "-o", "wide")


def _as_nobody(*arguments: str) -> str:
    command = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", "kubenpuctl", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.every_machine
def test_doctor_finds_nothing_wrong() -> None:
    done = subprocess.run(["kubenpuctl", "doctor"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
