# SPDX-License-Identifier: Apache-2.0
"""The Varlink interface without a socket: golden definition, answers, pages, what changes, hostile calls and names."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.api import dbus, fields
from kubenpu.api import varlink as api
from kubenpu.exporters.picture import Picture
from kubenpu.exporters.varlink_calls import Answers, MalformedError
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import Usage, View
from tests.fakes.dbus_node import ALLOCATED, IGPU, NPU, OFF, VIEW, counts, many, picture
from tests.fakes.varlink_peer import NODE, PARSED, check, encoded

GOLDEN = Path(__file__).parent.parent / "golden/io.kubenpu.Node.varlink"
SERVICE = "org.varlink.service"
HOSTILE = ('a"b\\', "line\nbreak", "nul\0", "esc\x1b[2J", "\udcff\udcfe", "\u202e", "{}", "x" * 4096)


def answers(view: View = VIEW) -> Answers:
    return Answers(lambda: picture(view))


def replies(data: bytes, of: Answers | None = None) -> Iterator[Any]:
    for reply in (of or answers()).begin(data.removesuffix(b"\0")).replies:
        yield json.loads(reply.decode("ascii"))


def ask(method: str, parameters: object = None, view: View = VIEW, **flags: object) -> Any:
    (reply,) = replies(encoded(method, parameters, **flags), answers(view))
    return reply["parameters"] if "error" not in reply else (reply["error"], reply["parameters"])


# ---- what it is ----


def test_golden_definition() -> None:
    text = api.render_idl()
    if "KUBENPU_UPDATE_GOLDEN" in os.environ:
        GOLDEN.write_text(text)
    assert text == GOLDEN.read_text()


def test_library_reads_what_is_declared() -> None:
    members = {name: type(member).__name__ for name, member in PARSED.members.items()}
    assert members == (
        {each.name: "_Alias" for each in api.TYPES}
        | {each.name: "_Method" for each in api.METHODS}
        | {each.name: "_Error" for each in api.ERRORS}
    )
    for method in api.METHODS:
        assert list(PARSED.members[method.name].in_type.fields) == [part.key for part in method.takes]


def test_every_method_has_a_handler() -> None:
    handlers = vars(answers()._service.interfaces_handlers[NODE])
    assert handlers.keys() == {method.name for method in api.METHODS}


def test_rows_are_those_of_dbus() -> None:
    """Key by key: the spelling of a name is the only difference."""
    shown = next(iter(picture().devices()))
    both: list[tuple[Any, Any, Any]] = [
        (fields.NODE_FIELDS, VIEW, ask("GetInfo")),
        (fields.DEVICE_FIELDS, shown, ask("ListDevices")["devices"][0]),
        (fields.COUNTER_FIELDS, picture().show(VIEW.usage[1]), ask("GetCounters")["counters"][1]),
    ]
    for of, subject, row in both:
        over_dbus = dbus.read_fields(of, subject)
        assert [name[0].lower() + name[1:] for name in over_dbus] == list(row)
        same = [name for name, (signature, _) in over_dbus.items() if signature not in {"a(suu)", "a{sv}"}]
        assert {name: over_dbus[name][1] for name in same} == {n: row[n[0].lower() + n[1:]] for n in same}


@pytest.mark.parametrize("view", [VIEW, OFF, many(3)])
@pytest.mark.parametrize("method", ["GetInfo", "ListDevices", "ListWorkloads", "GetCounters"])
def test_replies_are_what_the_definition_says(method: str, view: View) -> None:
    check(method, ask(method, view=view))


def test_absent_is_absent() -> None:
    assert "countingSince" not in ask("GetInfo", view=OFF)
    assert ask("ListDevices")["devices"][1] == {"address": NPU, "nodes": []}
    assert ask("GetCounters", view=OFF) == {"counters": [], "total": 0}
    assert "submit" not in ask("GetCounters", {"filter": {"device": NPU}})["counters"][0]["calls"]


def test_introspection() -> None:
    info = ask(f"{SERVICE}.GetInfo")
    assert (info["vendor"], info["product"], info["interfaces"]) == ("KubeNPU", "kubenpud", [SERVICE, NODE])
    assert ask(f"{SERVICE}.GetInterfaceDescription", {"interface": NODE}) == {"description": api.render_idl()}
    unknown = ask(f"{SERVICE}.GetInterfaceDescription", {"interface": "x.y"})
    assert unknown == (f"{SERVICE}.InterfaceNotFound", {"interface": "x.y"})


# ---- calls ----


def test_parameters_may_be_absent_null_or_empty() -> None:
    assert ask("GetCounters") == ask("GetCounters", {}) == ask("GetCounters", {"filter": None, "limit": None})
    (reply,) = replies(b'{"method":"io.kubenpu.Node.GetCounters","parameters":null,"more":null}')
    assert reply["parameters"] == ask("GetCounters")


@pytest.mark.parametrize(
    ("method", "error"),
    [
        (f"{NODE}.Reload", ("MethodNotFound", {"method": "Reload"})),
        (f"{NODE}.Device", ("MethodNotFound", {"method": "Device"})),
        (f"{NODE}.__init__", ("MethodNotFound", {"method": "__init__"})),
        ("io.kubenpu.Other.GetInfo", ("InterfaceNotFound", {"interface": "io.kubenpu.Other"})),
        (".GetInfo", ("InterfaceNotFound", {"interface": ""})),
        (f"{SERVICE}.handle", ("MethodNotFound", {"method": "handle"})),
    ],
)
def test_what_there_is_not(method: str, error: tuple[str, object]) -> None:
    assert ask(method) == (f"{SERVICE}.{error[0]}", error[1])


@pytest.mark.parametrize(
    ("parameters", "wrong"),
    [
        ({"filter": []}, "filter"),
        ({"filter": "pod"}, "filter"),
        ({"filter": {"Pod": "web-0"}}, "filter"),
        ({"filter": {"calls": {}}}, "filter"),
        ({"filter": {"pod": 1}}, "filter"),
        ({"filter": {"alive": "true"}}, "filter"),
        ({"filter": {"alive": 1}}, "filter"),
        ({"offset": -1}, "offset"),
        ({"offset": 1.0}, "offset"),
        ({"limit": True}, "limit"),
        ({"limit": "1"}, "limit"),
        ({"limit": float("nan")}, "limit"),
        ({"limit": float("inf")}, "limit"),
        ({"rows": 1}, "rows"),
        ({"\ud800": 1}, "\ud800"),
    ],
)
def test_wrong_parameters_are_named(parameters: object, wrong: str) -> None:
    assert ask("GetCounters", parameters) == (f"{SERVICE}.InvalidParameter", {"parameter": wrong})


@pytest.mark.parametrize("interval", [0, -1, 3601, 1.5, True, "1"])
def test_intervals_that_cannot_be(interval: object) -> None:
    answer = ask("Watch", {"intervalSeconds": interval}, more=True)
    assert answer == (f"{SERVICE}.InvalidParameter", {"parameter": "intervalSeconds"})


def test_upgrade_is_refused_and_watch_needs_more() -> None:
    assert ask("GetInfo", upgrade=True) == (f"{SERVICE}.InvalidParameter", {"parameter": "upgrade"})
    assert ask("Watch") == (f"{SERVICE}.ExpectedMore", {})
    assert ask("Watch", more=False) == (f"{SERVICE}.ExpectedMore", {})


@pytest.mark.parametrize("method", ["GetInfo", "Watch", "None", f"{SERVICE}.GetInfo"])
def test_oneway_has_no_reply_not_even_an_error(method: str) -> None:
    assert list(replies(encoded(method, {"nonsense": 1}, oneway=True, more=True))) == []


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{",
        b"[]",
        b"null",
        b"1",
        b"{}",
        b'{"method":1}',
        b'{"method":null}',
        b'{"method":"a.B","parameters":[]}',
        b'{"method":"a.B","parameters":"x"}',
        b'{"method":"a.B","more":1}',
        b'{"method":"a.B","oneway":"yes"}',
        b'{"method":"a.B"} {}',
        b'{"method":"\xff"}',
        '{"method":"a.B"}'.encode("utf-16"),
        b"[" * 60000,
        b'{"method":"a.B","parameters":{"x":' + b"9" * 5000 + b"}}",
    ],
)
def test_what_is_no_call_is_refused(data: bytes) -> None:
    with pytest.raises(MalformedError):
        answers().begin(data)


def test_a_view_that_cannot_be_had() -> None:
    def no_picture() -> Picture:
        raise SourceError("the counters\n are gone")

    for method in ("GetInfo", "ListDevices", "ListWorkloads", "GetCounters", "Watch"):
        (reply,) = replies(encoded(method, more=True), Answers(no_picture))
        assert reply == {"error": api.FAILED, "parameters": {"reason": "the counters\\n are gone"}}


def test_pages_follow_each_other() -> None:
    view = many(1234)
    rows: list[Any] = []
    while len(rows) < 1234:
        found = ask("GetCounters", {"offset": len(rows), "limit": 600}, view)
        assert (len(found["counters"]), found["total"]) == (min(fields.MAX_ROWS, 1234 - len(rows)), 1234)
        rows += found["counters"]
    assert [row["pod"] for row in rows] == [usage.owner.pod for usage in view.usage]
    assert ask("GetCounters", {"offset": 10**30}, view)["counters"] == []
    assert len(ask("GetCounters", {"limit": 0}, view)["counters"]) == fields.MAX_ROWS


def test_filters_select() -> None:
    def pods(wanted: Mapping[str, object]) -> list[str]:
        return [row.get("pod", "") for row in ask("GetCounters", {"filter": wanted})["counters"]]

    assert pods({"namespace": "shop", "device": IGPU}) == ["web-0"]
    assert pods({"alive": False}) == [""]
    assert pods({"unit": "", "kind": "pod"}) == ["web-0", "web-0"]
    assert pods({"pod": None, "kind": "unknown"}) == [""]
    assert pods({"pod": "\udcff"}) == []


def test_allocations() -> None:
    error, parameters = ask("ListAllocations")
    assert error == api.FAILED
    check("Failed", parameters)
    gpu, unknown = ask("ListAllocations", view=ALLOCATED)["allocations"]
    assert gpu == {
        "namespace": "shop",
        "pod": "web-0",
        "container": "main",
        "podUid": "u1",
        "resource": "gpu.intel.com/i915",
        "deviceId": "card1-0",
        "device": IGPU,
        "idleSince": 1700000000,
    }
    assert unknown["claim"] == "shop/claim"
    assert {"device", "idleSince", "podUid"}.isdisjoint(unknown)
    found = ask("GetCounters", view=ALLOCATED)["counters"]
    assert [row.get("allocated") for row in found] == [None, True, False, None]


def test_too_many_workloads_are_refused() -> None:
    assert len(ask("ListWorkloads", view=many(fields.MAX_WORKLOADS))["workloads"]) == fields.MAX_WORKLOADS
    refused = ask("ListWorkloads", view=many(fields.MAX_WORKLOADS + 1))
    assert refused == (api.TOO_MANY_WORKLOADS, {"limit": fields.MAX_WORKLOADS})
    check("TooManyWorkloads", refused[1])


# ---- hostile calls and names ----

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)
NAMES = [part.key for method in api.METHODS for part in method.takes] + ["interface", "x"]
METHODS = [f"{NODE}.{method.name}" for method in api.METHODS]
CALLS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(
            [f"{NODE}.{m.name}" for m in api.METHODS] + [f"{SERVICE}.GetInterfaceDescription", "x"]
        )
    },
    optional={
        "parameters": st.dictionaries(st.sampled_from(NAMES), JSON, max_size=3) | JSON,
        "oneway": st.booleans(),
        "upgrade": st.booleans(),
    },
)


@settings(deadline=None)
@given(st.binary(max_size=64) | CALLS.map(lambda call: json.dumps(call).encode()))
def test_any_call_is_refused_or_answered(data: bytes) -> None:
    try:
        found = list(replies(data))
    except MalformedError:
        return
    assert len(found) <= 1
    for reply in found:
        assert reply.keys() in ({"parameters"}, {"error", "parameters"})


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_names_are_text(name: str) -> None:
    owner = Owner(OwnerKind.POD, name, name, name, name, name, name, image=name)
    view = replace(
        VIEW,
        node=name,
        devices=tuple(replace(device, driver=name, nodes=()) for device in VIEW.devices),
        usage=(Usage(owner, name, name, counts(1), 1.0, True),),
    )
    for method in ("GetInfo", "ListDevices", "ListWorkloads", "GetCounters"):
        reply = ask(method, view=view)
        check(method, reply)
        json.dumps(reply, ensure_ascii=False).encode()  # no half of a surrogate pair
    assert ask("GetCounters", view=view)["counters"][0]["pod"].isprintable()


def test_an_answer_that_cannot_be_written_is_an_error_for_its_caller(caplog: pytest.LogCaptureFixture) -> None:
    device = replace(VIEW.devices[0], numa_node=object())  # type: ignore[arg-type]
    of = answers(replace(VIEW, devices=(device,)))
    (reply,) = replies(encoded("ListDevices"), of)
    assert reply["error"] == api.FAILED
    assert "ListDevices cannot be answered" in caplog.text
    (reply,) = replies(encoded("GetInfo"), of)
    assert reply["parameters"]["version"] == VIEW.version
