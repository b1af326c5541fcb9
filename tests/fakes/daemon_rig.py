# SPDX-License-Identifier: Apache-2.0
"""The daemon's loop on a test bench: a node, a bell and a device watch as a test wants them, and its script.

The loop runs in the main thread, as signals want it. The script runs in another one, waits for what the daemon does
and ends it with SIGTERM; whatever fails there fails the test.
"""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import os
import queue
import re
import signal
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import cast

import pytest

from kubenpu.config.settings import Settings
from kubenpu.model.device import Visibility
from kubenpu.model.errors import SourceError
from kubenpu.model.view import SourceStatus, View
from kubenpu.service.daemon import Daemon
from kubenpu.service.node import Node

DEADLINE_S = 20.0


class FakeBell:
    """Readable from ring() until it is silenced."""

    def __init__(self) -> None:
        self.fd = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)

    def ring(self) -> None:
        os.eventfd_write(self.fd, 1)

    def silence(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.eventfd_read(self.fd)

    def close(self) -> None:
        os.close(self.fd)


class FakeWatch:
    """Device events: poke() makes it readable; `broken` makes it fail for good."""

    def __init__(self) -> None:
        self.events, self.broken, self.closed = FakeBell(), False, False
        self.followed: frozenset[str] = frozenset()

    def fileno(self) -> int:
        return self.events.fd

    def drain(self) -> bool:
        self.events.silence()
        if self.broken:
            raise SourceError("Device events ended")
        return True

    def follow(self, subsystems: frozenset[str]) -> bool:
        new, self.followed = subsystems - self.followed, subsystems
        return bool(new)

    def close(self) -> None:
        if not self.closed:
            self.events.close()
        self.closed = True


@dataclass
class FakeNode:
    """`steps` is what the daemon asked for, in order. `during` runs inside a step, in the worker thread.

    `in_loop`: what was asked for in the loop and may wait there for the node's lock.
    """

    simulated: bool = False
    pause: float | None = None
    ringing: FakeBell | None = None
    steps: list[str] = field(default_factory=list)
    applied: list[Settings] = field(default_factory=list)
    sources: tuple[SourceStatus, ...] = ()
    during: dict[str, Callable[[], None]] = field(default_factory=dict)
    changed: threading.Condition = field(default_factory=threading.Condition)
    closed: bool = False
    notes: list[tuple[str, str]] = field(default_factory=list)
    subsystems: frozenset[str] = frozenset()
    in_loop: list[str] = field(default_factory=list)

    def check_thread(self, name: str) -> None:
        if threading.current_thread() is threading.main_thread():
            self.in_loop.append(name)

    def step(self, name: str) -> None:
        self.check_thread(name)
        with self.changed:
            self.steps.append(name)
            self.changed.notify_all()
        self.during.get(name, lambda: None)()

    def event_subsystems(self) -> frozenset[str]:
        return self.subsystems

    def rescan_devices(self) -> None:
        self.step("rescan")

    def open(self) -> None:
        self.step("open")

    def tidy(self) -> None:
        self.step("tidy")

    def resolve(self) -> float | None:
        if self.ringing is not None:
            self.ringing.silence()
        self.step("resolve")
        return self.pause

    def ask_kubelet(self) -> None:
        self.step("ask_kubelet")

    def apply(self, settings: Settings) -> None:
        self.applied.append(settings)

    def bell(self) -> FakeBell | None:
        return self.ringing

    def view(self) -> View:
        return View("1", "n", self.simulated, None, (), (), (), (), self.sources, {}, 0, 0, 0)

    def work_of(self, _vendor: str | None) -> str | None:
        return None

    def visibility(self, _vendor: str | None) -> dict[str, Visibility]:
        return {}

    def note_source(self, source: str, reason: str, _seconds: float) -> None:
        self.check_thread("note_source")
        self.notes.append((source, reason))

    def summary(self) -> str:
        return f"{self.steps.count('rescan')} scans"

    def close(self) -> None:
        self.closed = True

    def wait_for(self, name: str, times: int = 1) -> None:
        with self.changed:
            assert self.changed.wait_for(lambda: self.steps.count(name) >= times, DEADLINE_S), self.steps


class Rig:
    """One daemon, its node, what it tells systemd, and the script that runs beside it."""

    def __init__(self, settings: Settings, watch: FakeWatch, log: pytest.LogCaptureFixture) -> None:
        self.node, self.settings, self.watch, self.log = FakeNode(), settings, watch, log
        self.told: queue.SimpleQueue[str] = queue.SimpleQueue()
        self.said: list[str] = []
        self.read_again: Callable[[], Settings] = lambda: settings

    def _daemon(self) -> Daemon:
        return Daemon(self.settings, cast(Node, self.node), self.read_again)

    def notify(self, message: str) -> None:
        self.told.put(message)

    def run(self, script: Callable[[], None]) -> None:
        """Runs the daemon until the script is through, then ends it by SIGTERM."""
        failures: list[BaseException] = []

        def beside() -> None:
            try:
                script()
            except (AssertionError, OSError, queue.Empty) as error:
                failures.append(error)
            finally:
                os.kill(os.getpid(), signal.SIGTERM)

        thread = threading.Thread(target=beside)

        async def main() -> None:
            thread.start()
            try:
                await asyncio.wait_for(self._daemon().run(), 2 * DEADLINE_S)
            finally:
                await asyncio.to_thread(thread.join)  # its SIGTERM needs the loop's handler

        asyncio.run(main())
        assert failures == []
        assert self.node.in_loop == []
        assert self.node.closed

    def hear(self, what: str) -> None:
        """Waits until systemd was told this."""
        while what not in self.said:
            self.said.append(self.told.get(timeout=DEADLINE_S))

    def ask(self, path: str) -> tuple[int, str]:
        self.node.wait_for("resolve")  # by then the address is logged
        found = re.search(r"serves 127\.0\.0\.1:(\d+)", self.log.text)
        assert found is not None
        connection = http.client.HTTPConnection("127.0.0.1", int(found[1]), timeout=DEADLINE_S)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()
