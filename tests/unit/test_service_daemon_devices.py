# SPDX-License-Identifier: Apache-2.0
"""When the daemon scans for devices."""

from __future__ import annotations

import os
import signal
import threading

import pytest

from kubenpu.devices.watch import DeviceWatch
from kubenpu.model.errors import SourceError
from kubenpu.service import daemon
from tests.fakes.daemon_rig import DEADLINE_S, Rig


def test_a_device_event_scans_at_once(rig: Rig) -> None:
    def script() -> None:
        rig.hear("READY=1")
        rig.watch.events.ring()
        rig.node.wait_for("rescan", 2)
        rig.hear("STATUS=2 scans")

    rig.run(script)


def test_after_an_event_it_scans_again_when_all_has_settled(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also after one that comes while it scans for the one before."""
    monkeypatch.setattr(daemon, "SETTLE_SECONDS", 0.01)
    heard = threading.Event()
    drain = rig.watch.drain

    def drained() -> bool:
        changed = drain()
        heard.set()
        return changed

    def ring_once() -> None:
        if rig.node.steps.count("rescan") == 2:
            heard.clear()
            rig.watch.events.ring()
            assert heard.wait(DEADLINE_S)

    def script() -> None:
        rig.hear("READY=1")
        rig.watch.events.ring()
        rig.node.wait_for("rescan", 4)

    rig.watch.drain = drained  # type: ignore[method-assign]  # tells when the loop heard it
    rig.node.during["rescan"] = ring_once
    rig.run(script)


def test_classes_of_new_driver_tables_are_followed(rig: Rig) -> None:
    """And looked at once more: their events until then went by."""

    def script() -> None:
        rig.hear("READY=1")
        assert rig.watch.followed == {"kfd"}
        rig.node.subsystems = frozenset(("kfd", "npu9"))
        os.kill(os.getpid(), signal.SIGHUP)
        rig.node.wait_for("rescan", 4)

    rig.node.subsystems = frozenset(("kfd",))
    rig.run(script)
    assert rig.watch.followed == {"kfd", "npu9"}


def test_device_events_that_end_are_said_once_and_scanned_for(rig: Rig) -> None:
    rig.watch.broken = True

    def script() -> None:
        rig.hear("READY=1")
        rig.watch.events.ring()
        rig.node.wait_for("rescan", 2)
        rig.hear("STATUS=2 scans")

    rig.run(script)
    assert rig.watch.closed
    assert rig.log.text.count("Device events ended") == 1


def test_a_host_without_device_events(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_subsystems: object) -> DeviceWatch:
        raise SourceError("No device events: no netlink", "Allow AF_NETLINK sockets")

    monkeypatch.setattr(daemon, "DeviceWatch", refuse)
    rig.run(lambda: rig.hear("READY=1"))
    assert "No device events: no netlink. Allow AF_NETLINK sockets." in rig.log.text
