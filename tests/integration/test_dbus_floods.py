# SPDX-License-Identifier: Apache-2.0
"""What floods, silence and oversized calls over D-Bus do to kubenpud and to other callers."""

from __future__ import annotations

import asyncio
import logging
import subprocess
import threading
from dataclasses import replace
from functools import partial
from typing import Any

import pytest

from kubenpu.api import dbus as api
from kubenpu.exporters import dbus
from kubenpu.exporters.dbus_client import NodeClient
from kubenpu.exporters.dbus_connection import MAX_BACKLOG_BYTES, CallError, Connection, connected
from kubenpu.exporters.dbus_next_parts import MessageFlag, Variant
from kubenpu.model.device import Device
from tests.fakes.dbus_node import USAGE, VIEW, FakeNode, many
from tests.fakes.private_bus import (
    DEADLINE_S,
    NOBODY,
    PrivateBus,
    Serving,
    eventually,
    method,
    subscribe,
    with_connection,
    with_polkit,
)


def test_a_subscriber_that_never_reads_harms_nobody(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    """More than a socket takes is on its way to it; others are served and hear everything."""
    devices = tuple(Device(f"dev-{i}", "drm", "x" * 400, None, None, None, (), "") for i in range(127))

    def devices_now() -> int:
        with NodeClient(bus.address) as client:
            return len(client.devices())

    async def work(deaf: Connection) -> None:
        await subscribe(deaf)
        deaf.reading.cancel()
        async with connected(bus.address, 64 << 20) as other:
            heard = await subscribe(other)
            for number in range(20):
                before = len(heard)
                node.shown = replace(VIEW, devices=tuple(replace(d, driver=f"{number}{d.driver}") for d in devices))
                served.changed()
                while len(heard) < before + 127:
                    await asyncio.wait([other.reading], timeout=0.01)
                assert await asyncio.to_thread(devices_now) == 127

    with_connection(bus, work)
    (session,) = served.sessions
    assert not session.dropped


def test_a_bus_that_takes_nothing_makes_us_drop(
    bus: PrivateBus, served: Serving, node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    devices = tuple(Device(f"dev-{i}", "drm", "x" * 400, None, None, None, (), "") for i in range(127))
    node.shown = replace(VIEW, devices=devices)
    bus.freeze(True)
    for number in range(40):
        asked = node.view_count
        node.shown = replace(VIEW, devices=tuple(replace(d, driver=f"{number}{d.driver}") for d in devices))
        served.changed()
        eventually(lambda: node.view_count > asked)  # noqa: B023 - evaluated in this round
    (session,) = served.sessions
    assert session.dropped
    assert session.connection.waiting_bytes < 2 * MAX_BACKLOG_BYTES
    bus.freeze(False)
    with NodeClient(bus.address) as client:
        assert len(client.devices()) == 127
    node.shown = VIEW
    with caplog.at_level(logging.WARNING):
        served.changed()
        eventually(lambda: "messages were dropped" in caplog.text)
    assert not session.dropped
    served.changed()
    eventually(lambda: f" {node.dropped} messages were dropped" in caplog.text)


def test_a_flood_of_calls_is_refused_and_others_are_served(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    node.shown = many(500)
    page = ("GetCounters", "a{sv}uu", [{}, 0, 500])

    async def work(connection: Connection) -> tuple[list[Any], list[Any]]:
        flood = [asyncio.create_task(connection.call(method(*page), DEADLINE_S)) for _ in range(300)]
        async with connected(bus.address, 64 << 20) as other:
            devices = await other.call(method("ListDevices"), DEADLINE_S)
        return devices, await asyncio.gather(*flood, return_exceptions=True)

    devices, answers = with_connection(bus, work)
    assert len(devices[0]) == 2
    refused = [answer for answer in answers if isinstance(answer, CallError)]
    assert {answer.name for answer in refused} == {api.LIMITS_EXCEEDED}
    assert 0 < len(refused) < 300
    assert all(len(answer[0]) == 500 for answer in answers if not isinstance(answer, CallError))


def test_too_large_a_call_is_refused_unread(bus: PrivateBus, served: Serving) -> None:
    large = [{"Pod": Variant("s", "x" * 1_000_000)}, 0, 1]

    async def work(connection: Connection) -> list[Any]:
        silent = method("GetCounters", "a{sv}uu", large, flags=MessageFlag.NO_REPLY_EXPECTED)
        await connection.send(connection.encode(silent))
        with pytest.raises(CallError, match="a call has at most 64 KiB") as refused:
            await connection.call(method("GetCounters", "a{sv}uu", large))
        assert refused.value.name == api.LIMITS_EXCEEDED
        return await connection.call(method("ListDevices"))

    assert len(with_connection(bus, work)[0]) == 2


def test_nobody_is_answered_who_wants_no_answer(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    async def work(connection: Connection) -> None:
        before = node.view_count
        silent = method("GetCounters", "a{sv}uu", [{}, 0, 1], flags=MessageFlag.NO_REPLY_EXPECTED)
        for _ in range(100):
            await connection.send(connection.encode(silent))
        await connection.call(method("ListDevices"))
        assert node.view_count <= before + 1

    with_connection(bus, work)


def test_questions_about_the_past_wait_for_themselves(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    """One is answered at a time, two of one user wait at most; everything else is answered meanwhile."""
    node.hold_usage = threading.Event()

    async def work(connection: Connection) -> None:
        ask = partial(connection.call, timeout_s=DEADLINE_S)
        usage = partial(method, "GetUsage", "stt", ["pod", 0, 1])
        waiting = [asyncio.create_task(ask(usage())) for _ in range(dbus.MAX_LONG_OF_ONE)]
        while len(served.sessions[0].slow) < dbus.MAX_LONG_OF_ONE:
            await asyncio.wait(waiting, timeout=0.01)
        with pytest.raises(CallError) as refused:
            await ask(usage())
        assert refused.value.name == api.LIMITS_EXCEEDED
        assert await ask(method("ListDevices"))
        assert not any(task.done() for task in waiting)
        assert node.hold_usage is not None
        node.hold_usage.set()
        assert [len(rows) for (rows,) in await asyncio.gather(*waiting)] == [len(USAGE)] * dbus.MAX_LONG_OF_ONE

    with_connection(bus, work)


def start_calls(bus: PrivateBus, number: int, *words: str) -> list[subprocess.Popen[str]]:
    """By a user who is not root."""
    command = ["busctl", f"--address={bus.address}", "call", api.NAME, api.PATH, api.NODE.name, *words]
    return [
        subprocess.Popen(command, user=NOBODY, cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        for _ in range(number)
    ]


def ended(calls: list[subprocess.Popen[str]]) -> int:
    return sum(call.poll() is not None for call in calls)


def test_one_user_keeps_nobody_from_the_history(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    hold = node.hold_usage = threading.Event()
    flood = start_calls(bus, dbus.MAX_SLOW + 3, "GetUsage", "stt", "pod", "0", "1")
    eventually(lambda: ended(flood) == len(flood) - dbus.MAX_LONG_OF_ONE)

    async def work(connection: Connection) -> list[Any]:
        asking = asyncio.create_task(connection.call(method("GetUsage", "stt", ["pod", 0, 1]), DEADLINE_S))
        (session,) = served.sessions
        while len(session.slow) <= dbus.MAX_LONG_OF_ONE and not asking.done():
            await asyncio.wait([asking], timeout=0.01)
        hold.set()
        return await asking

    assert len(with_connection(bus, work)[0]) == len(USAGE)
    errors = [call.communicate(timeout=DEADLINE_S)[1] for call in flood]
    assert sorted(errors) == [""] * 2 + ["Call failed: too many calls wait for the history\n"] * (len(flood) - 2)


def test_one_user_keeps_nobody_from_a_reload(bus: PrivateBus, served: Serving, node: FakeNode) -> None:
    """By calls of which polkit asks a person, which may take minutes."""

    def work() -> int:
        flood = start_calls(bus, dbus.MAX_DECISIONS + 3, "Reload")
        eventually(lambda: ended(flood) == len(flood) - dbus.MAX_LONG_OF_ONE)
        reloaded = bus.call("Reload")
        for call in flood:
            call.kill()
            call.communicate()
        return reloaded.returncode

    assert served.do(with_polkit(bus.address, lambda _call: None, work))[0] == 0
    assert node.reloads == 1
