# SPDX-License-Identifier: Apache-2.0
"""What a node shows of itself: hooks, sources, devices, over pins and runtimes that are not there."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.kernel.pins import STATE_NAME
from kubenpu.model.device import Visibility
from kubenpu.model.sample import HookStatus
from kubenpu.service.node import Node
from tests.fakes.node_world import FENTRY, World, source
from tests.fakes.sim_plan import DEVICES, IGPU
from tests.fakes.sim_sysfs import write_sysfs


def test_the_hook_is_as_the_probe_says_while_its_links_are_pinned(world: World, node: Node) -> None:
    view = node.view()
    assert view.hooks == (FENTRY,)
    assert view.counting_since is not None
    assert "drm_ioctl fentry" in node.summary()


def test_when_the_clock_is_set_start_times_follow_and_do_not_tremble(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A board without a clock learns the time after kubenpud was started."""
    wall = 1e6
    monkeypatch.setattr(time, "time", lambda: wall)
    node = world.start()
    node.open()
    world.work(world.cgroup())
    started, late = 1e6 - world.now, 2e9 - world.now
    for set_to, follows in ((1e6 + 0.9, started), (2e9, late), (2e9 - 0.9, late), (1e6, started), (7, 0)):
        wall = set_to
        view = node.view()
        assert view.boot_unix_s == follows
        assert view.counting_since == follows + FENTRY.since_ns / 1e9
        assert [usage.since for usage in view.usage] == [follows + 1]
        assert [each.since for each in view.device_usage] == [view.counting_since]


def test_pins_that_cannot_be_looked_at_are_not_said_to_be_gone(world: World) -> None:
    world.load_probe(FENTRY)
    cells = world.pins.map("cells")
    cells.unlink()
    node = world.start()
    assert node.view().hooks[0].reason == "its pins were removed"
    cells.symlink_to(cells.name)  # a loop, which no user can follow
    assert node.view().hooks[0].reason == "kubenpud cannot use its counters"


@pytest.mark.parametrize("side", ["enter", "exit"])
@pytest.mark.parametrize("reason", ["", "replaced the program behind the attached hook"])
def test_a_hook_without_its_links_is_off(world: World, node: Node, side: str, reason: str) -> None:
    world.load_probe(replace(FENTRY, reason=reason))
    world.pins.link("drm_ioctl", side).unlink()
    view = node.view()
    assert view.hooks == (HookStatus("drm_ioctl", "off", "its pins were removed", FENTRY.since_ns),)
    assert view.counting_since is None
    assert "drm_ioctl off (its pins were removed)" in node.summary()


def test_a_hook_that_the_probe_left_off_keeps_its_reason(world: World, node: Node) -> None:
    off = HookStatus("drm_ioctl", "off", "drm is not loaded", 7)
    world.load_probe(off)
    for side in ("enter", "exit"):
        world.pins.link("drm_ioctl", side).unlink()
    assert node.view().hooks == (off,)
    assert node.view().counting_since is None


def test_a_damaged_state_file_is_the_reason(world: World, node: Node) -> None:
    (world.settings.run_directory / STATE_NAME).write_text("{")
    (hook,) = node.view().hooks
    assert hook.mechanism == "off"
    assert "is damaged" in hook.reason
    assert "Run kubenpu-probe load again" in hook.reason


def test_a_simulated_node_says_so_everywhere(world: World) -> None:
    plain = world.start()
    assert not plain.simulated
    assert not plain.view().simulated
    assert "SIMULATED" not in plain.summary()
    write_sysfs(world.settings.sysfs, DEVICES)
    node = world.start()
    assert node.view().simulated
    assert node.summary().startswith("SIMULATED NODE, ")


def test_the_summary_counts_accelerators_as_people_do(world: World, node: Node) -> None:
    assert node.summary().startswith("0 accelerators, ")
    write_sysfs(world.settings.sysfs, (IGPU,))
    node.rescan_devices()
    assert node.summary().startswith("1 accelerator, ")


def test_what_a_driver_lets_one_see(world: World, node: Node) -> None:
    assert node.visibility("i915") == {}  # nothing was read yet
    write_sysfs(world.settings.sysfs, DEVICES)
    node.rescan_devices()
    assert node.visibility("i915")["submit"] is Visibility.ALWAYS
    assert node.visibility("unheard of") == {}
    assert node.visibility(None) == {}


def test_a_run_directory_that_cannot_be_locked_stops_no_daemon(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_sysfs(world.settings.sysfs, DEVICES)
    (world.settings.run_directory / "rules.lock").mkdir()
    node.rescan_devices()
    up, reason = source(node, "devices")
    assert not up
    assert "rules.lock" in reason


def test_other_runtimes_are_asked_after_a_reload(world: World, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    followed: list[object] = []
    monkeypatch.setattr(world, "follow", followed.append, raising=False)
    world.work(world.cgroup())
    node.resolve()
    assert any(s.source.startswith("cri:") for s in node.view().sources)
    for _ in range(2):
        node.apply(replace(world.settings, cri_sockets=(Path("/run/other.sock"),), retention_seconds=7))
    assert followed == [(Path("/run/other.sock"),)]
    assert not any(s.source.startswith("cri:") for s in node.view().sources)
    assert node._ledger.retention_s == 7


def test_what_the_bus_does_not_take_is_added_up_once_there_is_one(node: Node) -> None:
    assert node.view().dbus_dropped is None
    node.note_dropped(0)
    assert node.view().dbus_dropped == 0
    for count in (3, 2):
        node.note_dropped(count)
    assert node.view().dbus_dropped == 5
