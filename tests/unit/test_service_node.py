# SPDX-License-Identifier: Apache-2.0
"""The node over pins, runtimes and a cgroup tree that are not there: what it asks, believes, keeps and frees."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.identity import containers, podresources
from kubenpu.identity.cgroup import parse_path
from kubenpu.identity.resolve import LATER_S, RETRY_S
from kubenpu.kernel.pins import STATE_NAME
from kubenpu.ledger.names import NAMES_NAME
from kubenpu.model.allocation import Allocation, Allocations, Claimed, Listing
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind, Resolution
from kubenpu.model.sample import CgroupRecord, HookStatus
from kubenpu.model.view import View
from kubenpu.service.kubelet import MaybeKubelet
from kubenpu.service.node import Node
from tests.fakes.node_world import CLAIM, CONFIRMED, DENIED, ID, POD, POD_PATH, World, owners, source
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs

# ---- whose it is ----


def test_an_owner_is_asked_for_until_the_answer_is_final(world: World, node: Node) -> None:
    world.work(world.cgroup())
    assert node.resolve() == RETRY_S[0]
    assert owners(node.view()) == [CLAIM]
    assert node.resolve() == RETRY_S[0]  # too early: nobody was asked
    world.now += RETRY_S[0]
    assert node.resolve() == RETRY_S[1]
    world.now += RETRY_S[1] / 2
    assert node.resolve() == RETRY_S[1] / 2
    world.now += RETRY_S[1] / 2
    world.resolver.answer = lambda _path: CONFIRMED
    assert node.resolve() is None
    assert owners(node.view()) == [POD]
    assert world.resolver.asked == [{POD_PATH: 0}, {POD_PATH: 1}, {POD_PATH: 2}]
    world.now += 1e6
    assert node.resolve() is None
    assert len(world.resolver.asked) == 3


def test_a_path_that_was_not_reached_is_asked_about_at_once(world: World, node: Node) -> None:
    """The resolver's time was up: the number of earlier questions stays."""
    world.work(world.cgroup())
    world.resolver.answer = lambda _path: None
    assert node.resolve() == 0.0
    world.resolver.answer = lambda _path: CONFIRMED
    assert node.resolve() is None
    assert world.resolver.asked == [{POD_PATH: 0}] * 2


def test_a_cgroup_that_nobody_can_name_does_not_keep_the_daemon_busy(world: World, node: Node) -> None:
    """Gone before it was looked for, and the kernel had no room for its name or may not read it."""
    world.work(70, None)
    world.work(71, "/", truncated=True)
    for pause in (*RETRY_S, LATER_S):
        assert node.resolve() == pause
        world.now += pause
    assert world.resolver.asked == []
    assert owners(node.view()) == [Owner(OwnerKind.UNKNOWN)]


def test_a_name_that_the_kernel_writes_later_is_used(world: World, node: Node) -> None:
    world.work(70, None)
    node.resolve()
    world.store.records[70] = CgroupRecord(70, POD_PATH, False, 0)
    world.resolver.answer = lambda _path: CONFIRMED
    world.now += RETRY_S[0]
    assert node.resolve() is None
    assert world.resolver.asked == [{POD_PATH: 1}]


def test_a_path_cut_short_is_completed_from_the_tree_and_else_used_as_it_is(world: World, node: Node) -> None:
    deep = f"{POD_PATH}/{'x' * 60}/{'y' * 60}"
    cut = deep[: -len("/" + "y" * 60)]
    world.work(world.cgroup(deep), cut, truncated=True)
    world.work(70, cut, truncated=True)
    node.resolve()
    assert world.resolver.asked == [{deep: 0, cut: 0}]


def test_a_whole_path_is_believed_without_walking_the_tree(world: World, node: Node) -> None:
    world.work(70, "/", calls=1)
    world.work(71)
    node.resolve()
    assert world.resolver.asked == [{"/": 0, POD_PATH: 0}]
    assert node.view().index_rebuilds == 0


def test_a_slow_runtime_does_not_hold_up_a_scrape(world: World, node: Node) -> None:
    world.work(world.cgroup())
    asked, go_on = threading.Event(), threading.Event()

    def answer(_path: str) -> Resolution:
        asked.set()
        assert go_on.wait(20)
        return CONFIRMED

    world.resolver.answer = answer
    thread = threading.Thread(target=node.resolve)
    thread.start()
    try:
        assert asked.wait(20)
        seen: list[View] = []
        scrape = threading.Thread(target=lambda: seen.append(node.view()), daemon=True)
        scrape.start()
        scrape.join(10)
        assert [owners(view) for view in seen] == [[Owner(OwnerKind.UNKNOWN)]]
    finally:
        go_on.set()
        thread.join(20)
    assert owners(node.view()) == [POD]


def test_state_of_plain_containers_is_a_source_as_soon_as_there_is_one(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """And the node is well without it."""
    monkeypatch.setattr(containers, "_DOCKER_DATA", (str(tmp_path),))
    file = tmp_path / "containers" / ID / "config.v2.json"
    file.parent.mkdir(parents=True)
    file.write_text("{")
    find = world.resolver.options["find_container"]

    def answer(path: str) -> Resolution:
        with contextlib.suppress(SourceError):
            find(parse_path(path))
        return DENIED

    world.resolver.answer = answer
    world.work(70)
    node.resolve()
    assert "containers" not in {each.source for each in node.view().sources}
    world.work(71, f"/docker/{ID}")
    node.resolve()
    up, reason = source(node, "containers")
    assert not up
    assert str(file) in reason
    file.write_text(json.dumps({"ID": ID, "Name": "/train", "Config": {"Image": "cuda:13"}}))
    world.now += RETRY_S[0]
    node.resolve()
    assert source(node, "containers") == (True, "")
    assert find(parse_path(f"/docker/{ID}")) == ("docker:train", "cuda:13")


def test_the_kubelet_is_a_source_where_there_is_one(world: World, node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that is configured anew is another one."""
    node.ask_kubelet()
    assert not [each for each in node.view().sources if each.source == "kubelet"]
    socket = world.place / "kubelet.sock"
    socket.touch()
    node.ask_kubelet()
    up, reason = source(node, "kubelet")
    assert not up
    assert "gave no answer" in reason
    place = ("ml", "train-0", "worker")
    listing = Listing((Claimed(*place, "r", "mystery", "", ("mystery",)),), frozenset({"ml/train-0/worker"}))
    monkeypatch.setattr(podresources.PodResources, "listing", lambda _client: listing)
    node.ask_kubelet()
    assert source(node, "kubelet") == (True, "")
    known = node.view().allocations
    assert known is not None
    assert known.all == (Allocation(*place, "r", "mystery", "", None, "u7", None),)
    world.settings = replace(world.settings, kubelet_socket="")
    node.apply(world.settings)
    node.ask_kubelet()
    assert node.view().allocations is None
    assert not [each for each in node.view().sources if each.source == "kubelet"]


def test_a_kubelet_that_tells_more_than_is_kept_is_up_and_that_is_said_once(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    texts = iter(("too much", "too much", "", "too much"))
    listing = Listing((), frozenset())
    monkeypatch.setattr(podresources.PodResources, "listing", lambda _client: listing._replace(left_out=next(texts)))
    (world.place / "kubelet.sock").touch()
    found = []
    for _ in range(4):
        node.ask_kubelet()
        found.append(source(node, "kubelet"))
    assert found == [(True, "too much"), (True, "too much"), (True, ""), (True, "too much")]
    assert [record.getMessage() for record in caplog.records] == ["kubelet: too much"] * 2


def test_labels_are_asked_for_pods_that_hold_a_device_and_do_not_use_it(
    world: World, node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[set[str]] = []
    world.work(world.cgroup())
    held = Allocation("ml", "idle-0", "c", "r", "mystery", "", None, "u7", None)
    known = Allocations((held, held._replace(pod_uid="")), {})
    monkeypatch.setattr(MaybeKubelet, "known", property(lambda _kubelet: known))
    monkeypatch.setattr(node._labels, "look_up", lambda pods, _deadline_s: asked.append(set(pods)))
    node.resolve()
    assert asked == [{"u7"}]


def test_each_runtime_is_a_source(world: World, node: Node) -> None:
    world.work(world.cgroup())
    world.runtime.trouble = "no answer"
    node.resolve()
    assert source(node, "cri:/run/a.sock") == (False, "no answer")
    world.runtime.trouble, world.now = "", world.now + 60
    node.resolve()
    assert source(node, "cri:/run/a.sock") == (True, "")


def test_a_runtime_that_is_dead_shows_before_it_is_asked(world: World, node: Node) -> None:
    world.runtime.trouble = "nobody listens"
    node.tidy()
    assert source(node, "cri:/run/a.sock") == (False, "nobody listens")
    world.runtime.trouble = ""
    node.tidy()
    assert source(node, "cri:/run/a.sock") == (True, "")
    assert world.resolver.asked == []


# ---- names over a restart ----


def test_names_survive_a_restart(world: World, node: Node) -> None:
    """The runtime has forgotten the container by then, and the cgroup is gone."""
    world.resolver.answer = lambda _path: CONFIRMED
    world.work(70)
    node.resolve()
    node.close()
    again = world.start()
    again.open()
    world.work(70)
    world.resolver.asked.clear()
    assert again.resolve() is None
    assert owners(again.view()) == [POD]
    assert world.resolver.asked == []


def test_a_second_kubenpud_leaves_the_counters_alone_and_says_so(world: World, node: Node) -> None:
    second = world.start()
    up, reason = source(second, "counters")
    assert not up
    assert "another kubenpud" in reason
    assert "drm_ioctl off (kubenpud cannot use its counters)" in second.summary()
    assert source(node, "counters") == (True, "")
    assert [store.recovered for store in world.stores] == [True, False]  # the first may be merging right now


def test_a_damaged_file_of_names_is_reported_and_replaced(world: World) -> None:
    (world.settings.run_directory / NAMES_NAME).write_text("{")
    node = world.start()
    up, reason = source(node, "names")
    assert not up
    assert "written anew" in reason
    world.resolver.answer = lambda _path: CONFIRMED
    world.work(70)
    node.resolve()
    assert source(node, "names") == (True, "")
    node.close()
    again = world.start()
    again.open()
    world.work(70)
    assert owners(again.view()) == [POD]


def test_without_a_probe_there_is_a_reason_and_no_number(world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.pins.remove()
    (world.settings.run_directory / STATE_NAME).unlink()
    node = world.start()
    for step in (node.open, node.tidy):
        step()
    assert node.resolve() is None
    view = node.view()
    assert (view.usage, view.device_usage, view.dropped, view.counting_since) == ((), (), {}, None)
    assert source(node, "counters") == (False, "no counters are pinned. Start kubenpu-probe.")
    assert view.hooks == (HookStatus("drm_ioctl", "off", "kubenpu-probe has not run since boot", 0),)
    assert node.bell() is None
    assert [record.getMessage() for record in caplog.records if record.name.endswith("service.sources")] == [
        "counters: no counters are pinned. Start kubenpu-probe."
    ]


def test_new_pins_are_opened_and_told_the_devices(world: World, node: Node) -> None:
    write_sysfs(world.settings.sysfs, DEVICES)
    node.rescan_devices()
    old = world.store
    assert old.rules
    assert id(node.bell()) == id(old.bell)
    node.open()
    assert world.stores == [old]
    world.load_probe()
    node.open()
    assert old.closed
    assert len(world.stores) == 2
    assert world.store.rules == old.rules
    assert id(node.bell()) == id(world.store.bell)
    node.resolve()
    assert (old.bell.silenced, world.store.bell.silenced) == (0, 1)


def test_trouble_with_devices_is_logged_once_while_it_lasts(
    world: World, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    write_sysfs(world.settings.sysfs, DEVICES)
    tables = world.settings.drivers_directory
    tables.mkdir()

    def said() -> list[str]:
        found = [record.getMessage() for record in caplog.records if record.name.endswith("service.inventory")]
        caplog.clear()
        return found

    (tables / "a.toml").write_text("x")
    node.rescan_devices()
    (first,) = said()
    assert f"{tables}/a.toml" in first
    (tables / "b.toml").write_text("x")
    node.rescan_devices()
    assert [f"{tables}/b.toml" in text for text in said()] == [True]
    for file in tables.iterdir():
        file.unlink()
    node.rescan_devices()
    assert said() == []
    (tables / "a.toml").write_text("x")
    for _ in range(3):
        node.rescan_devices()
    assert said() == [first]


def test_pins_that_vanish_and_come_back(world: World, node: Node, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    world.work(70)
    assert len(node.view().usage) == 1
    for path in list(world.pins.root.iterdir()):
        path.unlink()
    assert node.view().usage == ()
    node.tidy()
    assert (world.stores[0].closed, node.bell()) == (True, None)
    world.load_probe()
    node.tidy()
    world.work(71)
    assert len(node.view().usage) == 1
    said = [record.getMessage() for record in caplog.records if record.name.endswith("service.sources")]
    assert said == ["counters: no counters are pinned. Start kubenpu-probe.", "counters: works again"]


def test_a_source_is_logged_when_it_changes_not_when_it_lasts(
    world: World, node: Node, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    for reason in ("", "a", "a", "b", "b", "", "", "a"):
        world.store.failing = reason
        node.view()
    said = [record.getMessage() for record in caplog.records if record.name.endswith("service.sources")]
    assert said == ["counters: a", "counters: b", "counters: works again", "counters: a"]
