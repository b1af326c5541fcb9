# SPDX-License-Identifier: Apache-2.0
"""Values that D-Bus has no room for: an error for who asked, a line in the log, and the interface goes on."""

from __future__ import annotations

import asyncio
import itertools
import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar, cast

import pytest

from kubenpu.api import dbus as api
from kubenpu.exporters.dbus import DbusServer, Session
from kubenpu.exporters.dbus_connection import Connection, decode
from kubenpu.exporters.dbus_next_parts import MessageType
from kubenpu.exporters.picture import Pictures
from kubenpu.model.view import View
from tests.fakes.dbus_node import VIEW, FakeNode, call, counts

NO_FILTER: dict[str, object] = {}
T = TypeVar("T")


class Wire:
    """What of a connection encodes."""

    def __init__(self) -> None:
        self._serials = itertools.count()
        self.encode = lambda message: Connection.encode(cast("Connection", self), message)


def too_large(view: View) -> View:
    usage = tuple(replace(each, counts=counts(1 << 64)) for each in view.usage)
    return replace(view, usage=usage, device_usage=(replace(view.device_usage[0], counts=counts(1 << 64)),))


def served(node: FakeNode, work: Callable[[DbusServer, Session], T]) -> T:
    async def serve() -> T:
        server = DbusServer(node, Pictures(node), "unix:path=/nowhere", node.reload, node.usage)
        server._loop = asyncio.get_running_loop()
        return work(server, Session(cast("Connection", Wire()), lambda: None))

    return asyncio.run(serve())


def test_an_answer_that_does_not_fit_is_an_error_for_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(too_large(VIEW))

    def ask(server: DbusServer, session: Session) -> list[Any]:
        asked = [call("GetCounters", "a{sv}uu", NO_FILTER, 0, 0)] * 2
        return [decode(server._answer(session, each)) for each in [*asked, call("ListAllocations")]]

    with caplog.at_level(logging.ERROR):
        replies = served(node, ask)
    assert [reply.message_type for reply in replies[:2]] == [MessageType.ERROR] * 2
    assert {reply.error_name for reply in replies} == {api.FAILED}
    assert [reply.reply_serial for reply in replies] == [9] * 3
    assert len(caplog.records) == 1, "a caller could fill the journal"
    assert f"GetCounters of {api.PATH} cannot be sent" in caplog.text


def test_a_signal_that_does_not_fit_is_left_out(caplog: pytest.LogCaptureFixture) -> None:
    node = FakeNode(VIEW)

    def change(server: DbusServer, session: Session) -> list[Any]:
        _, announced = server._plan(session, None)
        node.shown = replace(too_large(VIEW), counting_since=1.0)
        server.changed()
        encoded, announced = server._plan(session, announced)
        assert server._plan(session, announced)[0] == [], "what was left out is not tried again"
        return [decode(each) for each in encoded]

    with caplog.at_level(logging.ERROR):
        messages = served(node, change)
    assert [list(message.body[1]) for message in messages] == [["CountingSince"]]
    assert "PropertiesChanged" in caplog.text
