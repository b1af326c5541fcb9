# SPDX-License-Identifier: Apache-2.0
"""GetUsage and its pages, from the history to the client, without a bus: any number of containers, of one history."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kubenpu.api import dbus as api
from kubenpu.api.fields import MAX_ROWS, MAX_USAGE_GROUPS
from kubenpu.exporters import dbus_client
from kubenpu.exporters.dbus_calls import Answers
from kubenpu.exporters.dbus_client import USAGE_TRIES, NodeClient
from kubenpu.exporters.dbus_connection import CallError, from_wire
from kubenpu.exporters.dbus_next_parts import MessageType
from kubenpu.history.report import read_page
from kubenpu.history.snapshot import Names
from kubenpu.model.errors import SourceError
from kubenpu.model.usage import Part, UsageRow, add_up
from tests.fakes.dbus_node import call, objects, over_the_wire
from tests.fakes.history_rig import GPU, WEB, Rig

PODS = MAX_USAGE_GROUPS + 250


def pod(number: int) -> Names:
    return ("pod", f"ns-{number % 7}", f"job-{number}", "main", f"u{number}", "")


@pytest.fixture(scope="module")
def rig(tmp_path_factory: pytest.TempPathFactory) -> Rig:
    made = Rig(tmp_path_factory.mktemp("history") / "usage.db")
    made.step()
    for number in range(PODS):
        made.call(pod(number), 1 + number % 3)
    made.call(None, 9)
    made.step()
    return made


def ask(rig: Rig, member: str, signature: str, *body: object) -> Any:
    """The reply as the caller gets it, or the error's name and text."""

    def usage(by: str, since: float, until: float, page: range) -> tuple[list[UsageRow], int]:
        return read_page(rig.path, by, since, until, deadline_s=60, page=page)

    reply = over_the_wire(Answers(objects, usage).answer(call(member, signature, *body)))
    if reply.message_type is MessageType.ERROR:
        return reply.error_name, reply.body[0]
    return from_wire(reply.body)


class Client(NodeClient):
    """Without a bus between. `between` is called after each page."""

    def __init__(self, rig: Rig, between: Callable[[], None] = lambda: None) -> None:
        super().__init__("unix:abstract=none")
        self.rig, self.between, self.calls = rig, between, 0

    def _call(
        self,
        member: str,
        signature: str = "",
        body: list[object] | None = None,
        interface: api.Interface = api.NODE,
        timeout_s: float | None = None,
    ) -> list[Any]:
        found: list[Any] = ask(self.rig, member, signature, *(body or ()))
        self.calls += 1
        self.between()
        return found


def test_pages_are_the_whole(rig: Rig) -> None:
    with Client(rig) as client:
        rows = client.usage("pod", 0, 10**10)
    assert client.calls == 3
    groups = [row for row in rows if row.part is Part.WORKLOAD]
    assert {row.pod: row.amounts["calls.submit"] for row in groups} == {f"job-{n}": 1 + n % 3 for n in range(PODS)}
    assert len(groups) == PODS
    assert add_up(rows)
    assert [row.part for row in rows if row.device == GPU][:2] == [Part.DEVICE, Part.UNATTRIBUTED]
    assert {(row.device, row.part) for row in rows if row.part is not Part.WORKLOAD} == {
        (device, part) for device in rig.devices for part in (Part.DEVICE, Part.UNATTRIBUTED)
    }


def test_a_page_of_any_place(rig: Rig) -> None:
    whole, total = ask(rig, "GetUsagePage", "sttuu", "pod", 0, 10**10, 0, 0)
    names = [row["Pod"] for row in whole if row["Part"] == "workload"]
    assert (len(names), total) == (MAX_ROWS, PODS)
    part, _ = ask(rig, "GetUsagePage", "sttuu", "pod", 0, 10**10, 7, 5)
    assert [row["Pod"] for row in part if row["Part"] == "workload"] == names[7:12]
    beyond, total = ask(rig, "GetUsagePage", "sttuu", "pod", 0, 10**10, 2**32 - 1, 2**32 - 1)
    assert ({row["Part"] for row in beyond}, total) == ({"device", "unattributed"}, PODS)


def test_one_reply_has_its_limit_and_says_what_to_do(rig: Rig) -> None:
    name, text = ask(rig, "GetUsage", "stt", "pod", 0, 10**10)
    assert (name, "page with GetUsagePage" in text) == (api.LIMITS_EXCEEDED, True)
    (rows,) = ask(rig, "GetUsage", "stt", "namespace", 0, 10**10)
    assert len({row["Namespace"] for row in rows if row["Part"] == "workload"}) == 7


@pytest.mark.parametrize(("since", "until"), [(5, 5), (6, 5)])
@pytest.mark.parametrize(("member", "more"), [("GetUsage", []), ("GetUsagePage", [0, 0])])
def test_a_span_that_is_none_is_refused(rig: Rig, member: str, more: list[int], since: int, until: int) -> None:
    name, _ = ask(rig, member, "stt" + "u" * len(more), "pod", since, until, *more)
    assert name == api.INVALID_ARGS


def test_a_history_that_changes_between_two_pages_is_read_again(tmp_path: Path) -> None:
    rig = Rig(tmp_path / "usage.db")
    for number in range(MAX_ROWS + 1):
        rig.call(pod(number), 1)
    rig.step()
    once = iter([True])

    def more() -> None:
        rig.call(WEB, 1)
        rig.step()

    with Client(rig, lambda: more() if next(once, False) else None) as client:
        rows = client.usage("pod", 0, 10**10)
    assert client.calls == 4
    assert sum(row.amounts["calls.submit"] for row in rows if row.part is Part.WORKLOAD) == MAX_ROWS + 2
    with Client(rig, more) as client, pytest.raises(SourceError, match="the history changes"):
        client.usage("pod", 0, 10**10)
    assert client.calls == 2 * USAGE_TRIES


def test_a_minute_without_a_call_between_two_pages_is_a_change_too(tmp_path: Path) -> None:
    """It may have had device time and memory."""
    rig = Rig(tmp_path / "usage.db")
    for number in range(MAX_ROWS + 1):
        rig.call(pod(number), 1)
    rig.step()
    once = iter([True])
    with Client(rig, lambda: rig.step() if next(once, False) else None) as client:
        client.usage("pod", 0, 10**10)
    assert client.calls == 4


class Refused(Client):
    """So many times, because others wait."""

    def __init__(self, rig: Rig, times: float) -> None:
        super().__init__(rig, self.refuse)
        self.times = times

    def refuse(self) -> None:
        self.times -= 1
        if self.times >= 0:
            raise CallError(api.LIMITS_EXCEEDED, "too many calls wait for the history")


def test_who_finds_all_places_taken_tries_again_for_a_moment(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dbus_client, "BUSY_PAUSE_S", 0)
    with Refused(rig, 3) as client:
        assert add_up(client.usage("namespace", 0, 10**10))
    assert client.calls == 3 + 1
    monkeypatch.setattr(dbus_client, "BUSY_S", 0)
    with Refused(rig, float("inf")) as client, pytest.raises(CallError, match="too many calls"):
        client.usage("namespace", 0, 10**10)
