# SPDX-License-Identifier: Apache-2.0
"""Hotplug events: which of them count, lost ones, and where they cannot be had. One test uses the real kernel."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubenpu.devices.watch import DeviceWatch
from kubenpu.model.errors import SourceError

SAMPLES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "fixtures" / "uevents.json").read_text())
NULL_UEVENT = Path("/sys/class/mem/null/uevent")


class FakeMonitor:
    """Stands in for pyudev.Monitor: poll() gives what was queued; an exception among it is raised."""

    def __init__(self) -> None:
        self.queue: list[Any] = []
        self.subsystems: list[str] = []
        self._near, self._far = socket.socketpair()

    def filter_by(self, subsystem: str) -> None:
        self.subsystems.append(subsystem)

    def start(self) -> None:
        pass

    def fileno(self) -> int:
        return self._near.fileno()

    def poll(self, timeout: int) -> Any:
        assert timeout == 0
        event = self.queue.pop(0) if self.queue else None
        if isinstance(event, Exception):
            raise event
        return event

    def close(self) -> None:
        self._near.close()
        self._far.close()


@pytest.fixture
def monitor(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMonitor]:
    fake = FakeMonitor()

    def from_netlink(_context: object, source: str) -> FakeMonitor:
        assert source == "kernel"
        return fake

    pyudev = SimpleNamespace(Context=object, Monitor=SimpleNamespace(from_netlink=from_netlink))
    monkeypatch.setitem(sys.modules, "pyudev", pyudev)
    yield fake
    fake.close()


@pytest.fixture
def watch(monitor: FakeMonitor) -> Iterator[DeviceWatch]:
    watch = DeviceWatch()
    yield watch
    watch.close()


def event(action: str, subsystem: str, name: str) -> SimpleNamespace:
    return SimpleNamespace(action=action, subsystem=subsystem, sys_name=name)


def sampled_event(sample: str) -> SimpleNamespace:
    record = dict(line.split("=", 1) for line in SAMPLES[sample][1:])
    return event(record["ACTION"], record["SUBSYSTEM"], Path(record["DEVPATH"]).name)


def test_listens_to_both_classes(monitor: FakeMonitor, watch: DeviceWatch) -> None:
    assert monitor.subsystems == ["drm", "accel"]
    assert watch.fileno() >= 0


@pytest.mark.parametrize(
    ("words", "changed"),
    [
        ("add drm renderD130", True),
        ("remove drm card0", True),
        ("bind accel accel0", True),
        ("unbind accel accel0", True),
        ("move drm card1", True),
        ("change drm card0", False),
        ("add drm card0-DP-3", False),
        ("add accel accel_controlD0", False),
        ("add block sda", False),
    ],
)
def test_what_counts_as_a_change(monitor: FakeMonitor, watch: DeviceWatch, words: str, changed: bool) -> None:
    monitor.queue = [event(*words.split())]
    assert watch.drain() is changed
    assert watch.drain() is False


def test_more_subsystems(monitor: FakeMonitor) -> None:
    """Of those every entry counts: their nodes have no names that one could know."""
    watch = DeviceWatch(("kfd", "module", "accel"))
    assert monitor.subsystems == ["drm", "accel", "kfd", "module"]
    for words, changed in (("add kfd kfd", True), ("add module nvidia", True), ("add accel accel_controlD0", True)):
        monitor.queue = [event(*words.split())]
        assert watch.drain() is changed
    for words in ("change kfd kfd", "add block sda", "add drm card0-DP-3"):
        monitor.queue = [event(*words.split())]
        assert not watch.drain()
    watch.close()


def test_sampled_records(monitor: FakeMonitor, watch: DeviceWatch) -> None:
    monitor.queue = [sampled_event("23 netlink record of a new render node")]
    assert watch.drain() is True
    monitor.queue = [sampled_event("24 netlink record of a hang (7.3)")]
    assert watch.drain() is False


def test_drain_takes_everything_also_behind_a_change(monitor: FakeMonitor, watch: DeviceWatch) -> None:
    monitor.queue = [event("add", "drm", "card0"), event("change", "drm", "card0"), event("change", "drm", "card0")]
    assert watch.drain() is True
    assert monitor.queue == []


@pytest.mark.parametrize("error", [OSError(errno.ENOBUFS, "No buffer space"), ValueError("malformed")])
def test_lost_events_count_as_a_change(monitor: FakeMonitor, watch: DeviceWatch, error: Exception) -> None:
    monitor.queue = [error, event("change", "drm", "card0")]
    assert watch.drain() is True
    assert monitor.queue == []


def test_a_broken_socket_is_an_error_not_a_loop(monitor: FakeMonitor, watch: DeviceWatch) -> None:
    monitor.queue = [OSError(errno.EIO, "broken")] * 1000
    with pytest.raises(SourceError) as caught:
        watch.drain()
    assert "broken" in caught.value.cause and caught.value.remedy


def test_a_flood_is_taken_in_portions(monitor: FakeMonitor, watch: DeviceWatch) -> None:
    monitor.queue = [event("change", "drm", "card0")] * 10_000
    assert watch.drain() is False
    assert 0 < len(monitor.queue) < 10_000


def test_without_pyudev(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyudev", None)
    with pytest.raises(SourceError) as caught:
        DeviceWatch()
    assert "pyudev" in caught.value.cause and caught.value.remedy


@pytest.mark.parametrize("error", [ImportError("No library named udev"), OSError(errno.EAFNOSUPPORT, "not supported")])
def test_without_libudev_or_netlink(monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    def refuse() -> None:
        raise error

    monkeypatch.setitem(sys.modules, "pyudev", SimpleNamespace(Context=refuse, Monitor=None))
    with pytest.raises(SourceError) as caught:
        DeviceWatch()
    assert str(error) in caught.value.cause


def test_close_gives_the_descriptor_back(monitor: FakeMonitor) -> None:
    watch = DeviceWatch()
    fd = watch.fileno()
    watch.close()
    watch.close()
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.skipif(not os.access(NULL_UEVENT, os.W_OK), reason="only root can make the kernel send uevents")
def test_real_kernel_events_of_others_and_a_real_overflow() -> None:
    watch = DeviceWatch()
    poller = select.poll()
    poller.register(watch, select.POLLIN)
    try:
        NULL_UEVENT.write_text("change")
        assert poller.poll(5000)
        assert watch.drain() is False
        with socket.socket(fileno=os.dup(watch.fileno())) as same:
            same.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        for _ in range(200):
            NULL_UEVENT.write_text("change")
        assert watch.drain() is True
        assert poller.poll(0) == []
        NULL_UEVENT.write_text("change")
        assert poller.poll(5000)
        assert watch.drain() is False
    finally:
        watch.close()
