# SPDX-License-Identifier: Apache-2.0
"""kubenpu-clients around one look: what it reads, writes and says, and how it ends."""

from __future__ import annotations

import logging
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import sdnotify

from kubenpu.ledger.clients_file import NAME
from kubenpu.ledger.names import NAMES_NAME, write_names
from kubenpu.ledger.standing import Standing
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.service import clients
from kubenpu.service.clients import ALIVE_SECONDS, MAX_HOLDERS
from tests.fakes.clients_machine import ACCEL, BOOT_ID, GPU, INO, Machine


def test_a_look_ends_in_the_file(machine: Machine) -> None:
    one, other = machine.hold(10, "/pod/a", 1), machine.hold(11, "/pod/b", 2)
    machine.tell(one, 5, 1000, vram_kib=4)
    machine.tell(other, 6, 30)
    running = machine.start()
    running.step()
    found = {use.path: use for use in machine.sample().uses}
    assert found["/pod/a"].cgroup_id == one.cgroup_id
    assert (found["/pod/a"].device, found["/pod/a"].engine_ns, found["/pod/a"].memory) == (
        GPU,
        {"gfx": 1000},
        {"vram": 4096},
    )
    assert found["/pod/b"].engine_ns == {"gfx": 30}
    assert (running.trouble, running.summary()) == ("", "2 clients of 2 devices")
    assert (machine.run / NAME).stat().st_mode & 0o777 == 0o600


def test_a_file_that_two_share_counts_once(machine: Machine) -> None:
    child, parent = machine.hold(12, "/pod/b", 1), machine.hold(10, "/pod/a", 1)
    machine.tell(child, 5, 1000)
    machine.tell(parent, 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/a": 1000}, "that of the older process"


def test_another_holder_is_asked_when_the_first_is_gone(machine: Machine) -> None:
    machine.hold(10, "/pod/a", 1)
    machine.tell(machine.hold(11, "/pod/a", 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/a": 1000}


def test_nothing_is_asked_where_there_is_no_accelerator(machine: Machine) -> None:
    for name in ("drm", "accel"):
        for link in (machine.place / "sys/class" / name).iterdir():
            link.unlink()
    running = machine.start()
    running.step()
    assert (machine.asked, running.summary()) == (0, "0 clients of 0 devices")


@pytest.mark.parametrize("status", ["suspended", "suspending"])
def test_a_sleeping_device_is_not_woken(machine: Machine, status: str) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000, vram_kib=4)
    running = machine.start()
    running.step()
    machine.set_power(GPU, status)
    machine.tell(holder, 5, 5000)
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}
    assert machine.sample().uses[0].memory == {"vram": 4096}
    machine.set_power(GPU, "active")
    running.step()
    assert machine.gfx() == {"/pod/a": 5000}


def test_a_driver_that_tells_nothing_has_no_use(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1, ACCEL)
    machine.fdinfo(holder).write_text(f"pos:\t0\nino:\t{INO}\n")
    running = machine.start()
    running.step()
    assert (machine.sample().uses, running.trouble) == ((), "")


def test_a_cgroup_that_is_not_the_tasks_any_more_is_left_for_the_next_look(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    (machine.proc / "10/task/10/cgroup").write_text("0::/elsewhere\n")
    running = machine.start()
    running.step()
    assert machine.sample().uses == ()
    (machine.proc / "10/task/10/cgroup").write_text("0::/pod/a\n")
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}


def test_what_cannot_be_asked_is_said_and_keeps_the_totals(machine: Machine, caplog: pytest.LogCaptureFixture) -> None:
    machine.tell(machine.hold(10, "/pod/a", 1), 5, 1000)
    running = machine.start()
    running.step()
    known = [use.memory for use in machine.sample().uses]
    machine.trouble = SourceError("clients_iter is not there", "Start kubenpu-probe")
    with caplog.at_level(logging.INFO):
        running.step()
        running.step()
    assert machine.sample().trouble == "clients_iter is not there. Start kubenpu-probe."
    assert [record.message for record in caplog.records] == [machine.sample().trouble]
    assert machine.gfx() == {"/pod/a": 1000}
    assert [use.memory for use in machine.sample().uses] == [{}]  # what they have now is not known
    machine.trouble = None
    running.step()
    assert machine.sample().trouble == ""
    assert [use.memory for use in machine.sample().uses] == known != [{}]


def test_refused_fdinfo_is_said(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    open_path = Path.open

    def refusing(self: Path, *words: object, **more: object) -> object:
        if self == machine.fdinfo(holder):
            raise PermissionError(13, "Permission denied", str(self))
        return open_path(self, *words, **more)  # type: ignore[call-overload]

    monkeypatch.setattr(Path, "open", refusing)
    running = machine.start()
    running.step()
    assert running.trouble == "permission denied for the fdinfo of 1 clients, which needs CAP_SYS_PTRACE"


def test_a_number_that_cannot_be_is_left_out_and_said(machine: Machine) -> None:
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 99999999999999999999, vram_kib=4)
    running = machine.start()
    running.step()
    assert [(use.engine_ns, use.memory) for use in machine.sample().uses] == [({}, {"vram": 4096})]
    assert running.trouble == "1 numbers of drivers are left out, as nothing can have so much"
    machine.tell(holder, 5, 1000)
    running.step()
    assert (machine.gfx(), running.trouble) == ({"/pod/a": 1000}, "")


def test_a_disk_that_is_full_is_trouble(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    running = machine.start()

    def full(self: Path, target: Path) -> Path:
        raise OSError(28, "No space left on device", str(self))

    monkeypatch.setattr(Path, "replace", full)
    running.step()
    assert running.trouble == f"cannot write {machine.run / NAME}: No space left on device"


def test_the_end_of_a_series(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the names that kubenpud has, after the time that its own series stay."""
    holder = machine.hold(10, "/pod/a", 1)
    machine.tell(holder, 5, 1000)
    running = machine.start()
    running.step()
    owner = Owner(OwnerKind.POD, namespace="shop", pod="web", container="main")
    write_names(machine.run / NAMES_NAME, BOOT_ID, {holder.cgroup_id: Standing(owner, True)})
    machine.holders.clear()
    (machine.mount / "pod/a").rmdir()
    running.step()
    assert machine.gfx() == {"/pod/a": 1000}
    now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    monkeypatch.setattr(time, "clock_gettime_ns", lambda _clock: now + 601 * 10**9)
    running.step()
    assert [(use.cgroup_id, use.engine_ns) for use in machine.sample().uses] == [(0, {"gfx": 1000})]


class Told(list[str]):
    """What systemd was told."""

    def notify(self, text: str) -> None:
        self.append(text)


def test_it_looks_once_more_at_its_end(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    told, stop = Told(), threading.Event()
    monkeypatch.setattr(sdnotify, "SystemdNotifier", lambda: told)
    stop.set()
    clients.run(machine.start(), 600, stop)
    assert machine.asked == 2
    assert told == ["READY=1", "WATCHDOG=1", "STATUS=0 clients of 2 devices", "STOPPING=1"]


def test_a_path_that_is_no_text_survives(machine: Machine) -> None:
    path = os.fsdecode(b"/pod/\xff")
    machine.tell(machine.hold(10, path, 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {path: 1000}


def test_a_file_that_everybody_shares(machine: Machine) -> None:
    for pid in range(100, 100 + 2 * MAX_HOLDERS):
        machine.tell(machine.hold(pid, f"/pod/{pid}", 1), 5, 1000)
    machine.start().step()
    assert machine.gfx() == {"/pod/100": 1000}


def test_a_long_interval_is_no_silence(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    told, stop, waited = Told(), threading.Event(), []
    monkeypatch.setattr(sdnotify, "SystemdNotifier", lambda: told)

    def wait(seconds: float) -> bool:
        waited.append(seconds)
        return len(waited) == 3

    monkeypatch.setattr(stop, "wait", wait)
    clients.run(machine.start(), 3600, stop)
    assert waited == [ALIVE_SECONDS] * 3
    assert told[-3:] == ["WATCHDOG=1", "WATCHDOG=1", "STOPPING=1"]


def test_a_wrong_setting_ends_it(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    config = tmp_path / "kubenpu.toml"
    config.write_text("clients.interval_seconds = 0\n")
    with restored_signals():
        assert clients.main(["--config.file", str(config)]) == os.EX_CONFIG
    assert "clients.interval_seconds: expected" in caplog.text


@contextmanager
def restored_signals() -> Iterator[None]:
    before = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
