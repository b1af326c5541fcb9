# SPDX-License-Identifier: Apache-2.0
"""Names that come late: runtimes that are silent, that come later, and what a denial is worth until then."""

from __future__ import annotations

from kubenpu.identity.resolve import LATER_S, RETRY_S, SILENCE_S
from kubenpu.model.identity import Resolution
from kubenpu.service.node import Node
from tests.fakes.node_world import CLAIM, CONFIRMED, DENIED, GIVEN_UP, POD, POD_PATH, World, owners


def give_up(world: World, node: Node) -> None:
    """All runtimes have denied everything for as long as it takes."""
    for pause in RETRY_S:
        assert node.resolve() == pause
        world.now += pause
    assert node.resolve() == LATER_S


def test_who_was_denied_for_long_gets_its_name_late(world: World, node: Node) -> None:
    """The runtime that knows it comes later; until then there is a question every five minutes."""
    world.resolver.answer = lambda _path: GIVEN_UP
    world.work(world.cgroup())
    give_up(world, node)
    world.now += LATER_S - 1
    world.resolver.answer = lambda _path: CONFIRMED
    assert node.resolve() == 1
    assert owners(node.view()) == [CLAIM]
    world.now += 1
    assert node.resolve() is None
    assert owners(node.view()) == [POD]


def test_a_question_that_was_not_answered_does_not_count(world: World, node: Node) -> None:
    silent = Resolution(CLAIM, False, "down", silent=True)
    world.work(world.cgroup())
    for answer, pause in ((silent, SILENCE_S), (DENIED, RETRY_S[0]), (silent, SILENCE_S), (DENIED, RETRY_S[1])):
        world.resolver.answer = lambda _path, answer=answer: answer  # type: ignore[misc]
        assert node.resolve() == pause
        world.now += pause
    assert [asked[POD_PATH] for asked in world.resolver.asked] == [0, 0, 1, 1]


def test_a_runtime_that_was_not_there_is_asked_at_once(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: GIVEN_UP
    world.work(world.cgroup())
    give_up(world, node)
    world.resolver.asked.clear()
    world.runtime.name = "/run/b.sock"
    assert node.resolve() == RETRY_S[0]
    assert world.resolver.asked == [{POD_PATH: 0}]


def test_who_is_gone_and_was_denied_for_long_is_not_asked_about_any_more(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: GIVEN_UP
    world.work(world.cgroup())
    give_up(world, node)
    (world.mount / POD_PATH[1:]).rmdir()
    node.tidy()
    world.now += LATER_S
    assert node.resolve() is None
    assert owners(node.view()) == [CLAIM]


def test_a_restart_asks_again_about_who_was_denied_for_long(world: World, node: Node) -> None:
    world.resolver.answer = lambda _path: GIVEN_UP
    cgroup = world.cgroup()
    world.work(cgroup)
    node.resolve()
    node.close()
    again = world.start()
    again.open()
    world.work(cgroup)
    world.resolver.answer = lambda _path: CONFIRMED
    assert again.resolve() is None
    assert owners(again.view()) == [POD]
