# SPDX-License-Identifier: Apache-2.0
"""Every privilege and every gap in the units' sandboxes is needed: without it the part it is for fails, and says so.

Changes are drop-ins below /run. After the last case the units run as they are installed.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.vm.guest import fake, service, wait
from tests.vm.guest.drm import DrmDevice
from tests.vm.guest.service import CLIENTS, DAEMON, PROBE
from tests.vm.guest.tightened import TIGHTENED, Tightened

# Neither the kernel nor the version of systemd has a part in this.
pytestmark = [pytest.mark.usefixtures("counting"), pytest.mark.guests("bookworm")]


@pytest.fixture(scope="module", autouse=True)
def restored(counting: None) -> Iterator[None]:
    """The units as they are installed, once at the end: to put them back after each case takes longer than the case."""
    yield
    _as_installed()


def _as_installed() -> None:
    for command in ("daemon-reload", "reset-failed"):
        service.systemctl(command)
    service.systemctl("stop", CLIENTS)
    service.systemctl("restart", PROBE, DAEMON)
    wait.until("both devices", lambda: len(service.devices()) == 2)


@contextmanager
def _tightened(unit: str, *lines: str) -> Iterator[str]:
    """The unit, restarted with these lines and without a second try, whether that works or not. Gives its journal."""
    with service.drop_in(unit, "Restart=no", *lines):
        if unit != PROBE:
            service.systemctl("start", PROBE)
        cursor = _journal("-n1", "--show-cursor").rpartition("-- cursor: ")[2].strip()
        subprocess.run(["systemctl", "restart", unit], check=False, capture_output=True)
        yield _journal("-u", unit, f"--after-cursor={cursor}")


def _journal(*words: str) -> str:
    command = ["journalctl", "-q", "--no-pager", "-o", "cat", *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


@pytest.mark.parametrize("tightened", TIGHTENED, ids=lambda each: f"{each.unit}-{each.what}")
def test_it_does_not_do_without(tightened: Tightened) -> None:
    with _tightened(tightened.unit, *tightened.lines) as said:
        assert tightened.says in said


@pytest.mark.parametrize("line", ["CapabilityBoundingSet=~CAP_SYS_PTRACE", "PrivateUsers=yes"])
def test_clients_of_other_users_are_closed_to_it(virtio: DrmDevice, line: str) -> None:
    holding = ["systemd-run", "-q", "--unit=holding", "-p", "User=nobody", "-p", "SupplementaryGroups=render video"]
    subprocess.run([*holding, "sh", "-c", f"exec sleep infinity <{virtio.render}"], check=True)
    try:
        wait.until("the open device", lambda: _holds(int(service.show("holding.service", "MainPID")), virtio.render))
        with _tightened(CLIENTS, line) as said:
            assert "needs CAP_SYS_PTRACE" in said
    finally:
        service.systemctl("stop", "holding")


def _holds(pid: int, node: str) -> bool:
    try:
        return str(Path(f"/proc/{pid}/fd/0").readlink()) == node
    except OSError:
        return False


@pytest.mark.parametrize("unit", [DAEMON, PROBE])
def test_who_may_use_no_render_node_does_not_see_which_gpu_a_call_is_for(unit: str) -> None:
    try:
        with fake.loaded(drm=["amdgpu"], chr=["kfd:0:0"], topology=["4711"]), _tightened(unit, "DeviceAllow=") as said:
            assert "node 1 of KFD's topology cannot be read" in said
    finally:
        service.take_file_hook_off()


def test_a_private_network_serves_nobody() -> None:
    with _tightened(DAEMON, "PrivateNetwork=yes"):
        assert service.main_pid()
        assert service.rows_or_none() is None


def test_with_a_protected_host_name_the_node_keeps_its_old_name() -> None:
    before = Path("/proc/sys/kernel/hostname").read_text().strip()
    try:
        with _tightened(DAEMON, "ProtectHostname=yes"):
            _set_host_name("renamed")
            assert service.nodes() == {before}
        _as_installed()
        wait.until("the new name", lambda: service.nodes() == {"renamed"})
    finally:
        _set_host_name(before)
    wait.until("the old name", lambda: service.nodes() == {before})


def _set_host_name(name: str) -> None:
    Path("/proc/sys/kernel/hostname").write_text(name)
