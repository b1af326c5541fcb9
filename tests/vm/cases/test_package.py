# SPDX-License-Identifier: Apache-2.0
"""The package's life on a node: replaced under load, found again as operators left it, taken out, put in again.

R18, R20. Each case leaves this version installed, enabled and running.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.vm.guest import bus, drm, package, pods, service, tally, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.pods import Runtime
from tests.vm.guest.service import DAEMON, PROBE, VIRTIO_KINDS, systemctl
from tests.vm.packages import VERSIONS

# The kernel has no part in this: all of it on one version of Debian, an upgrade on the older too.
# dpkg and systemd are at work here, no kernel; every guest installs the package.
pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.deadline(300), pytest.mark.guests("trixie")]

METRICS_SOCKET = "kubenpud-metrics.socket"
FLAGS, SETTINGS = Path("/etc/default/kubenpu"), Path("/etc/kubenpu/kubenpu.toml")
SECONDS_TO_COUNT = 15  # emulated; what a user notices is a tenth of that


@pytest.fixture(autouse=True)
def installed() -> Iterator[None]:
    """A case that fails half-way leaves the next one what it needs."""
    yield
    if package.status() != ("installed", VERSIONS["this"]):
        package.install("this")
        service.start()


def test_upgrade_and_downgrade_under_load(runtime: Runtime, virtio: DrmDevice) -> None:
    """Nothing is lost or doubled, the probe is never stopped, and what an operator changed stays in force."""
    began = service.show(PROBE, "InvocationID")
    with _edited(), pods.pod(runtime, "upgraded") as pod:
        script = "getparam:50,resource_create:5,virtio_wait:5,bad_close:3"
        args = ["--node", virtio.render, "--do", script, "--threads", "2", "--rate", "300", "--seconds", "600"]
        flood = pod.run("flood", args, devices=[virtio.render])
        service.wait_for_owner(pod="upgraded", container="flood")
        for version in ("next", "this"):
            before = service.main_pid(), service.counted("kubenpu_ioctl_total", pod="upgraded")["other"]
            package.install(version)
            assert package.status() == ("installed", VERSIONS[version])
            assert service.value("kubenpu_build_info", version=VERSIONS[version]) == 1
            assert service.main_pid() != before[0], "the old daemon runs on"
            assert service.counted("kubenpu_ioctl_total", pod="upgraded")["other"] > before[1]
            assert service.show(PROBE, "InvocationID") == began, "the probe was stopped and started"
            _assert_edits_are_in_force()
        assert flood.stop() == 0
        service.assert_exact(flood.tally(), VIRTIO_KINDS, virtio.address, pod="upgraded", container="flood")
    service.assert_conserved()
    assert package.changed_files() == set()


@contextmanager
def _edited() -> Iterator[None]:
    """Changes to both files that an operator may edit, taken back at the end."""
    shipped = {path: path.read_text() for path in (FLAGS, SETTINGS)}
    FLAGS.write_text('ARGS="--log.level=debug"\n')
    SETTINGS.write_text('[web]\nlisten_address = [":10074", "127.0.0.1:10075"]\n')
    try:
        yield
    finally:
        for path, text in shipped.items():
            path.write_text(text)
            path.with_name(f"{path.name}.dpkg-dist").unlink(missing_ok=True)
        systemctl("restart", DAEMON)


def _assert_edits_are_in_force() -> None:
    assert package.changed_files() == {str(FLAGS), str(SETTINGS)}
    assert Path(f"/proc/{service.main_pid()}/cmdline").read_bytes().endswith(b"\0--log.level=debug\0")
    assert service.healthy("127.0.0.1:10075")
    shipped = [path.with_name(f"{path.name}.dpkg-dist").read_text() for path in (FLAGS, SETTINGS)]
    assert shipped[0].endswith('ARGS=""\n')
    assert "#retention_seconds = " in shipped[1]


def test_what_was_stopped_disabled_or_masked_stays_so() -> None:
    """An upgrade starts nothing that an operator has stopped, and a mask does not stop it."""
    systemctl("stop", DAEMON)
    systemctl("mask", PROBE)
    package.install("next")
    assert (service.show(DAEMON, "ActiveState"), _enabled(DAEMON)) == ("inactive", "enabled")
    assert (service.show(PROBE, "ActiveState"), _enabled(PROBE)) == ("active", "masked")
    systemctl("unmask", PROBE)
    systemctl("start", DAEMON)
    systemctl("disable", DAEMON)
    systemctl("stop", PROBE)
    package.install("this")
    assert (service.show(DAEMON, "ActiveState"), _enabled(DAEMON)) == ("active", "disabled")
    assert (service.show(PROBE, "ActiveState"), _enabled(PROBE)) == ("inactive", "enabled")
    assert _enabled(METRICS_SOCKET) == "disabled"
    systemctl("enable", DAEMON)
    service.start()
    wait.until("both devices", lambda: len(service.devices()) == 2)


def test_removal_purge_and_return(virtio: DrmDevice) -> None:
    """R20. A removal keeps what operators wrote and no program in the kernel; a purge nothing of ours and all else."""
    theirs = Path("/var/lib/somebody/file")
    ours = Path("/etc/kubenpu/drivers.d/mine.toml")
    theirs.parent.mkdir()
    theirs.write_text("theirs\n")
    ours.write_text("")
    FLAGS.write_text(f"{FLAGS.read_text()}# edited\n")
    package.remove()
    assert package.status()[0] == "config-files"
    _assert_nothing_runs()
    assert ours.exists()
    assert FLAGS.read_text().endswith("# edited\n")
    package.install("this")
    _assert_it_counts(virtio)
    assert package.changed_files() == {str(FLAGS)}
    package.purge()
    _assert_nothing_runs()
    assert package.remains() == set()
    assert theirs.read_text() == "theirs\n"
    before = _reloads_of_systemd()
    package.install("this")
    _assert_it_counts(virtio)
    assert _reloads_of_systemd() == before, "GPU containers of some runtimes lose their devices by that"
    theirs.unlink()
    theirs.parent.rmdir()


def test_purge_takes_links_that_the_package_did_not_make() -> None:
    """Installed while it was masked, enabled by hand later, wanted by another target too."""
    systemctl("mask", DAEMON)
    package.purge()
    assert "error" not in package.install("this")
    assert _enabled(DAEMON) == "masked"
    systemctl("unmask", DAEMON)
    systemctl("enable", "--now", DAEMON)
    systemctl("add-wants", "basic.target", DAEMON)
    package.purge()
    assert package.remains() == set()
    package.install("this")
    wait.until("both devices", lambda: len(service.devices()) == 2)


def test_an_enabled_socket_is_there_after_a_return() -> None:
    """It must be started before the service, beside which it refuses to start."""
    systemctl("stop", DAEMON)
    systemctl("enable", "--now", METRICS_SOCKET)
    try:
        package.remove()
        package.install("this")
        assert service.show(METRICS_SOCKET, "ActiveState") == service.show(DAEMON, "ActiveState") == "active"
        wait.until("both devices", lambda: len(service.devices()) == 2)
    finally:
        systemctl("disable", "--now", METRICS_SOCKET)
        systemctl("restart", DAEMON)
    wait.until("both devices", lambda: len(service.devices()) == 2)


def _assert_nothing_runs() -> None:
    assert not list(Path("/sys/fs/bpf").iterdir()), "pins left"
    programs = subprocess.run(["bpftool", "prog"], check=True, capture_output=True, text=True).stdout
    assert "_hook" not in programs
    assert not Path("/run/kubenpu").exists()
    assert service.show(DAEMON, "ActiveState") == service.show(PROBE, "ActiveState") == "inactive"
    asked = bus.version(by=bus.NOBODY)
    assert "not activatable" in asked.stderr or "ServiceUnknown" in asked.stderr or "not provided" in asked.stderr


def _assert_it_counts(virtio: DrmDevice) -> None:
    """Right after dpkg has ended, without a reboot, a reload or a start by hand: enabled, counting, on the bus."""
    began = time.monotonic()
    assert service.mechanism() == service.BEST_MECHANISM
    assert _enabled(PROBE) == _enabled(DAEMON) == "enabled"
    done = tally.run("--node", virtio.render, "--do", "getparam:10")
    wait.until("metrics", service.rows_or_none, SECONDS_TO_COUNT)
    assert service.counted("kubenpu_device_ioctl_total", device=virtio.address) == {"other": done.total}
    wait.until("io.kubenpu on the bus", lambda: bus.version(by=bus.NOBODY).returncode == 0, SECONDS_TO_COUNT)
    assert time.monotonic() - began < SECONDS_TO_COUNT
    wait.until("both devices", lambda: len(service.devices()) == 2)


def _reloads_of_systemd() -> int:
    """How often systemd has read all units again since boot."""
    command = ["journalctl", "-q", "-b", "-o", "cat", "_PID=1"]
    lines = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    return sum(line.startswith(("Reloading.", "Reloading...", "Reload requested")) for line in lines)


def test_a_node_that_has_not_mounted_bpffs(virtio: DrmDevice) -> None:
    """The unit mounts it, for everybody to see; systemd itself does so at boot, but not in every container or image."""
    service.stop()
    subprocess.run(["umount", "/sys/fs/bpf"], check=True)
    service.start()
    assert "/sys/fs/bpf bpf" in Path("/proc/mounts").read_text()
    before = service.counted("kubenpu_device_ioctl_total", device=virtio.address)
    assert tally.run("--node", virtio.render, "--do", "getparam:10").total == 10
    assert service.counted("kubenpu_device_ioctl_total", device=virtio.address) == {
        "other": before.get("other", 0) + 10
    }
    wait.until("both devices", lambda: len(service.devices()) == 2)


def test_a_runtime_that_comes_later(runtime: Runtime, virtio: DrmDevice) -> None:
    """kubenpud is there before the runtime has ever made its socket."""
    systemctl("stop", "containerd")
    for socket in Path("/run/containerd").glob("*.sock*"):
        socket.unlink()
    systemctl("restart", DAEMON)
    wait.until("both devices", lambda: len(service.devices()) == 2)
    assert not [row for row in service.rows() if row.labels.get("source", "").startswith("cri:") and row.value]
    systemctl("start", "containerd")
    drm.virtio_gpu()
    with pods.pod(runtime, "first") as pod:
        container = pod.run("main", ["--node", virtio.render, "--do", "getparam:5"], devices=[virtio.render])
        assert container.wait() == 0
        service.assert_exact(container.tally(), VIRTIO_KINDS, virtio.address, pod="first", container="main")


def _enabled(unit: str) -> str:
    command = ["systemctl", "is-enabled", unit]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()
