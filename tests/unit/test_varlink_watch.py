# SPDX-License-Identifier: Apache-2.0
"""Watch without a socket: everything first, then what changed; bounded replies, and what is kept for watchers."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

from kubenpu.api import fields
from kubenpu.api import varlink as api
from kubenpu.exporters.picture import Picture
from kubenpu.exporters.varlink_calls import Answers
from kubenpu.model.errors import SourceError
from kubenpu.model.sample import Counts
from kubenpu.model.view import Usage, View
from tests.fakes.dbus_node import IGPU, NPU, OFF, POD, VIEW, counts, many
from tests.fakes.varlink_peer import check, encoded


class Watched:
    """A Watch over a View that the test changes."""

    def __init__(self, parameters: object = None, view: View = VIEW) -> None:
        self.view, self.reads = view, 0
        self.answers = Answers(self._picture)
        self.call = self.answers.begin(encoded("Watch", parameters, more=True)[:-1])

    def _picture(self) -> Picture:
        self.reads += 1
        return Picture(self.view, frozenset({"i915"}), at=float(self.reads))

    def next(self) -> Any:
        reply = json.loads(next(self.call.replies))
        assert reply["continues"] is True
        check("Watch", reply["parameters"])
        return reply["parameters"]

    def set(self, number: int, usage: Usage) -> None:
        rows = list(self.view.usage)
        rows[number] = usage
        self.view = replace(self.view, usage=tuple(rows))


def test_watch_brings_everything_then_what_changed() -> None:
    watched = Watched({"intervalSeconds": 7})
    first = watched.next()
    assert first == {"timeUsec": 1_000_000, "counters": first["counters"], "remaining": 0}
    assert [row["device"] for row in first["counters"]] == [usage.device for usage in VIEW.usage]
    assert watched.call.pause_s == 7
    assert watched.next() == {"timeUsec": 2_000_000, "counters": [], "remaining": 0}
    watched.set(1, replace(VIEW.usage[1], counts=counts(101, 20, 0, 0, 7)))
    (row,) = watched.next()["counters"]
    assert (row["pod"], row["device"], row["calls"]["submit"]) == ("web-0", IGPU, 101)
    watched.set(1, replace(watched.view.usage[1], alive=False))
    (row,) = watched.next()["counters"]
    assert not row["alive"]
    fresh = Usage(replace(POD, pod="new"), NPU, None, counts(0, 1), 1.0, True)
    watched.view = replace(watched.view, usage=(fresh, *watched.view.usage[1:]))
    assert [row["pod"] for row in watched.next()["counters"]] == ["new"]
    assert watched.next()["counters"] == []


def test_watch_selects() -> None:
    watched = Watched({"filter": {"device": NPU, "kind": "pod"}})
    assert [row["pod"] for row in watched.next()["counters"]] == ["web-0"]
    watched.set(0, replace(VIEW.usage[0], counts=counts(0, 9)))
    assert watched.next()["counters"] == []


def test_many_rows_come_in_bounded_replies_and_none_is_missed() -> None:
    """Rows that change while the rest is under way come again, with their last count."""
    watched = Watched(view=many(1234))
    known: dict[str, int] = {}
    for remaining in (734, 1234 - 1000 + 1, 0):
        reply = watched.next()
        assert (len(reply["counters"]) <= fields.MAX_ROWS, reply["remaining"]) == (True, remaining)
        assert watched.call.pause_s == (0 if remaining else 1)
        known |= {row["pod"]: row["calls"]["alloc"] for row in reply["counters"]}
        if remaining == 734:
            watched.set(0, replace(watched.view.usage[0], counts=counts(0, 4711)))
    assert known == {u.owner.pod: u.counts.calls[1] for u in watched.view.usage}
    assert watched.next()["counters"] == []


def test_the_table_lives_while_somebody_watches() -> None:
    watched = Watched()
    other = watched.answers.begin(encoded("Watch", more=True)[:-1])
    watched.next()
    next(other.replies)
    watched.call.end()
    assert len(watched.answers.changes._seen) == len(VIEW.usage)
    other.end()
    assert not watched.answers.changes._seen
    assert not watched.answers.changes._watching


def test_who_goes_before_the_first_reply_is_known_to_watch() -> None:
    """A connection may end while that reply is being made."""
    answers = Watched().answers
    assert answers.begin(encoded("Watch", more=True)[:-1]).streams
    assert not answers.begin(encoded("Watch")[:-1]).streams
    assert not answers.begin(encoded("GetInfo", more=True)[:-1]).streams


def test_watch_ends_when_the_view_cannot_be_had() -> None:
    watched = Watched()
    watched.next()

    def gone() -> Picture:
        raise SourceError("gone")

    watched.answers._get_picture = gone
    assert json.loads(next(watched.call.replies)) == {"error": api.FAILED, "parameters": {"reason": "gone"}}
    assert watched.call.pause_s is None
    assert list(watched.call.replies) == []
    assert not watched.answers.changes._watching


def test_nothing_is_watched_while_nothing_counts() -> None:
    watched = Watched(view=OFF)
    assert watched.next()["counters"] == []
    watched.view = VIEW
    assert len(watched.next()["counters"]) == len(VIEW.usage)


def test_errors_of_a_row_are_a_change() -> None:
    watched = Watched()
    watched.next()
    before = VIEW.usage[1].counts
    watched.set(1, replace(VIEW.usage[1], counts=Counts(before.calls, (11, *before.errors[1:]), before.wait_ns)))
    assert watched.next()["counters"][0]["errors"]["submit"] == 11
