# SPDX-License-Identifier: Apache-2.0
"""A bus of a test's own, and D-Bus served on it for a node that the test changes."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.exporters import dbus, picture
from tests.fakes.dbus_node import FakeNode
from tests.fakes.private_bus import PrivateBus, Serving, eventually


@pytest.fixture(autouse=True, scope="session")
def _heeds_ctrl_c() -> None:
    """A shell's job in the background ignores SIGINT, and what it starts would, too."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture
def bus(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[PrivateBus]:
    with PrivateBus(tmp_path, f"{os.getpid()}-{abs(hash(request.node.name))}") as private:
        yield private


@pytest.fixture
def node() -> FakeNode:
    return FakeNode()


@pytest.fixture
def served(bus: PrivateBus, node: FakeNode, monkeypatch: pytest.MonkeyPatch) -> Iterator[Serving]:
    """On the bus, quick to publish and to come back. No thread and no file descriptor of it is left."""
    monkeypatch.setattr(dbus, "FIRST_PAUSE_S", 0.05)
    monkeypatch.setattr(dbus, "PUBLISH_EVERY_S", 0.01)
    monkeypatch.setattr(dbus, "PUBLISH_SHARE", 1.0)
    monkeypatch.setattr(dbus, "FRESH_S", 0.01)
    monkeypatch.setattr(picture, "FRESH_S", 0.01)
    fds, threads = open_fds(), set(threading.enumerate())
    with Serving(node, bus.address) as serving:
        eventually(lambda: node.notes == [""])
        yield serving
    eventually(lambda: set(threading.enumerate()) <= threads)  # a report that had begun may end later
    assert open_fds() <= fds


def open_fds() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}
