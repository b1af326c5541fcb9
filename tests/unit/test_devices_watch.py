# SPDX-License-Identifier: Apache-2.0
"""Hotplug events: which of them count, lost ones, and where they cannot be had. One test uses the real kernel."""

from __future__ import annotations

import errno
import json
import os
import select
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.devices import watch as watch_module
from kubenpu.devices.watch import DeviceWatch
from kubenpu.model.errors import SourceError

SAMPLES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "fixtures" / "uevents.json").read_text())
NULL_UEVENT = Path("/sys/class/mem/null/uevent")


KERNEL = 0


class FakeSocket:
    """Stands in for the netlink socket: recvfrom() gives what was queued; an exception among it is raised."""

    def __init__(self) -> None:
        self.queue: list[bytes | OSError] = []
        self.sender = KERNEL
        self.closed = False

    def recvfrom(self, size: int) -> tuple[bytes, tuple[int, int]]:
        if not self.queue:
            raise BlockingIOError(errno.EAGAIN, "nothing waits")
        event = self.queue.pop(0)
        if isinstance(event, OSError):
            raise event
        return event[:size], (self.sender, 1)

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def source(monkeypatch: pytest.MonkeyPatch) -> FakeSocket:
    fake = FakeSocket()
    monkeypatch.setattr(watch_module, "open_uevents", lambda: fake)
    return fake


@pytest.fixture
def watch(source: FakeSocket) -> Iterator[DeviceWatch]:
    watch = DeviceWatch()
    yield watch
    watch.close()
    assert source.closed


def event(action: str, subsystem: str, name: str) -> bytes:
    path = f"/devices/pci0000:00/0000:00:02.0/{subsystem}/{name}"
    fields = (f"{action}@{path}", f"ACTION={action}", f"DEVPATH={path}", f"SUBSYSTEM={subsystem}", "SEQNUM=4711")
    return "".join(f"{field}\0" for field in fields).encode()


def sampled_event(sample: str) -> bytes:
    return "".join(f"{line}\0" for line in SAMPLES[sample]).encode()


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
def test_what_counts_as_a_change(source: FakeSocket, watch: DeviceWatch, words: str, changed: bool) -> None:
    source.queue = [event(*words.split())]
    assert watch.drain() is changed
    assert watch.drain() is False


def test_more_subsystems(source: FakeSocket) -> None:
    """Of those every entry counts: their nodes have no names that one could know."""
    watch = DeviceWatch(frozenset(("kfd", "module", "accel")))
    for words, changed in (("add kfd kfd", True), ("add module nvidia", True), ("add accel accel_controlD0", True)):
        source.queue = [event(*words.split())]
        assert watch.drain() is changed
    for words in ("change kfd kfd", "add block sda", "add drm card0-DP-3"):
        source.queue = [event(*words.split())]
        assert not watch.drain()
    watch.close()


def test_subsystems_that_are_followed_later(source: FakeSocket, watch: DeviceWatch) -> None:
    assert watch.follow(frozenset(("kfd",))) is True
    source.queue = [event("add", "kfd", "kfd")]
    assert watch.drain() is True
    assert watch.follow(frozenset(("kfd",))) is False
    assert watch.follow(frozenset()) is False
    source.queue = [event("add", "kfd", "kfd")]
    assert watch.drain() is False


def test_sampled_records(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue = [sampled_event("23 netlink record of a new render node")]
    assert watch.drain() is True
    source.queue = [sampled_event("24 netlink record of a hang (7.3)")]
    assert watch.drain() is False


def test_processes_cannot_send_events(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue, source.sender = [event("add", "drm", "card0")], 4711
    assert watch.drain() is False


@pytest.mark.parametrize(
    "odd", [b"", b"\0", b"add@/devices/x", b"\xff\0=\0ACTION\0SUBSYSTEM=drm", b"libudev\0\xfe\xed\xca\xfe", b"a" * 9000]
)
def test_events_of_another_form_are_no_change(source: FakeSocket, watch: DeviceWatch, odd: bytes) -> None:
    source.queue = [odd]
    assert watch.drain() is False


def test_drain_takes_everything_also_behind_a_change(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue = [event("add", "drm", "card0"), event("change", "drm", "card0"), event("change", "drm", "card0")]
    assert watch.drain() is True
    assert source.queue == []


def test_lost_events_count_as_a_change(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue = [OSError(errno.ENOBUFS, "No buffer space")] * 20 + [event("change", "drm", "card0")]
    assert watch.drain() is True
    assert source.queue == []


def test_a_broken_socket_is_an_error_not_a_loop(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue = [OSError(errno.EIO, "broken") for _ in range(1000)]
    with pytest.raises(SourceError) as caught:
        watch.drain()
    assert "broken" in caught.value.cause and caught.value.remedy


def test_a_flood_is_taken_in_portions(source: FakeSocket, watch: DeviceWatch) -> None:
    source.queue = [event("change", "drm", "card0")] * 10_000
    assert watch.drain() is False
    assert 0 < len(source.queue) < 10_000


def test_without_netlink(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_arguments: int) -> None:
        raise OSError(errno.EAFNOSUPPORT, "not supported")

    monkeypatch.setattr(socket, "socket", refuse)
    with pytest.raises(SourceError) as caught:
        DeviceWatch()
    assert "not supported" in caught.value.cause and caught.value.remedy


def test_close_gives_the_descriptor_back() -> None:
    watch = DeviceWatch()
    fd = watch.fileno()
    watch.close()
    watch.close()
    with pytest.raises(OSError):
        os.fstat(fd)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make the kernel send uevents")
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
