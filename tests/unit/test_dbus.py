# SPDX-License-Identifier: Apache-2.0
"""The D-Bus interface without a bus: golden XML, answers, pages, hostile names."""

from __future__ import annotations

import asyncio
import dataclasses
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.api import dbus as api
from kubenpu.api.fields import MAX_ROWS, MAX_WORKLOADS
from kubenpu.exporters.dbus import Places
from kubenpu.exporters.dbus_calls import Answers, find_special, signal_message
from kubenpu.exporters.dbus_client import (
    parse_allocation,
    parse_counter,
    parse_device,
    parse_node,
    parse_usage,
)
from kubenpu.exporters.dbus_connection import (
    from_wire,
)
from kubenpu.exporters.dbus_next_parts import Message, MessageType, Variant
from kubenpu.exporters.dbus_objects import announce_all, plan_signals
from kubenpu.model.allocation import Allocation, Allocations
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import HookStatus
from kubenpu.model.view import Usage, View
from tests.fakes.dbus_node import (
    ALLOCATED,
    ALLOCATIONS,
    GPU_PATH,
    IGPU,
    NPU,
    NPU_PATH,
    OFF,
    USAGE,
    VIEW,
    FakeNode,
    call,
    counts,
    many,
    objects,
    over_the_wire,
)

NODE = FakeNode()
NO_FILTER: Mapping[str, object] = {}
GOLDEN = Path(__file__).parent.parent / "golden"


def ask(
    member: str,
    signature: str = "",
    *body: object,
    view: View = VIEW,
    path: str = api.PATH,
    interface: str = api.NODE.name,
) -> Any:
    """The reply as the caller gets it: its plain values, or the name of the error."""
    asked = call(member, signature, *body, path=path, interface=interface)
    reply = over_the_wire(Answers(lambda: objects(view), NODE.usage).answer(asked))
    assert (reply.destination, reply.reply_serial) == (":1.7", 9)
    return reply.error_name if reply.message_type is MessageType.ERROR else from_wire(reply.body)


def page(wanted: Mapping[str, object] = NO_FILTER, offset: int = 0, limit: int = 0, view: View = VIEW) -> Any:
    given = {name: Variant("b" if isinstance(value, bool) else "s", value) for name, value in wanted.items()}
    return ask("GetCounters", "a{sv}uu", given, offset, limit, view=view)


# ---- what it is ----


@pytest.mark.parametrize(("name", "path"), [("dbus-node.xml", api.PATH), ("dbus-device.xml", GPU_PATH)])
def test_golden_introspection(name: str, path: str) -> None:
    (text,) = ask("Introspect", path=path, interface=api.INTROSPECTABLE.name)
    if "KUBENPU_UPDATE_GOLDEN" in os.environ:
        (GOLDEN / name).write_text(text)
    assert text == (GOLDEN / name).read_text()


def test_names_are_distinct() -> None:
    for interface in (*api.OF_NODE, api.DEVICE):
        names = [method.name for method in interface.methods]
        names += [value.name for value in interface.properties]
        names += [signal.name for signal in interface.signals]
        assert len(names) == len(set(names))


def test_every_declared_method_is_answered() -> None:
    for interface in {*api.OF_NODE, *api.OF_DEVICE}:
        for method in interface.methods:
            assert method.action or f"{interface.name}.{method.name}" in Answers(objects, NODE.usage)._handlers


@pytest.mark.parametrize(
    ("address", "name"),
    [("0000:00:02.0", "0000_3a00_3a02_2e0"), ("vgem", "vgem"), ("a_b", "a_5fb"), ("é\udcff", "_c3_a9_ff"), ("", "_00")],
)
def test_device_paths(address: str, name: str) -> None:
    assert api.device_path(address) == f"/io/kubenpu/device/{name}"


@given(st.binary(), st.binary())
def test_any_address_has_a_path_of_its_own(one: bytes, other: bytes) -> None:
    paths = [api.device_path(name.decode(errors="surrogateescape")) for name in (one, other)]
    assert all(Message.new_signal(path, api.NODE.name, "X") for path in paths)
    assert (paths[0] == paths[1]) == ((one or b"\0") == (other or b"\0"))


# ---- answers ----


def test_devices() -> None:
    gpu, npu = ask("ListDevices")[0]
    assert gpu["Nodes"] == [["dri/card1", 226, 1]]
    assert gpu["Counters"]["Calls"]["submit"] == 140
    assert npu == {"Address": NPU, "Nodes": []}
    assert parse_device(gpu).counts is not None
    assert parse_device(npu).pci_id is None


def test_time_and_memory_are_there_where_they_are_known() -> None:
    rows, _ = page()
    told = [(row["Kind"], row["Device"], row.get("EngineNs"), row.get("MemoryBytes")) for row in rows]
    assert told == [
        ("host", NPU, None, None),
        ("pod", IGPU, {"render": 7, "copy": 0}, {"system0": 4096}),
        ("pod", NPU, None, None),
        ("unknown", IGPU, None, None),
    ]
    client = [parse_counter(row) for row in rows][1]
    assert (client.engine_seconds, client.memory) == (7e-9, {"system0": 4096})


def test_workloads_are_listed_once() -> None:
    (rows,) = ask("ListWorkloads")
    assert [row["Kind"] for row in rows] == ["host", "pod", "unknown"]
    names = {"Namespace": "shop", "Pod": "web-0", "Container": "main", "PodUid": "u1", "ContainerId": "c1"}
    assert rows[1] == {"Kind": "pod", **names, "Alive": True, "Devices": [IGPU, NPU], "Since": 1700000100}


def test_workloads_above_the_limit_are_refused() -> None:
    assert len(ask("ListWorkloads", view=many(MAX_WORKLOADS))[0]) == MAX_WORKLOADS
    assert ask("ListWorkloads", view=many(MAX_WORKLOADS + 1)) == api.LIMITS_EXCEEDED


def test_allocations() -> None:
    assert ask("ListAllocations") == api.FAILED
    rows = ask("ListAllocations", view=ALLOCATED)[0]
    held, unknown = ALLOCATIONS.all
    assert [parse_allocation(row) for row in rows] == [held._replace(idle_since=1700000000), unknown]
    assert {"Device", "IdleSince", "PodUid"}.isdisjoint(rows[1])


def test_an_allocation_without_names() -> None:
    """The kubelet's answer is passed on as it is, and an empty text is left out of a row."""
    nameless = Allocation("", "", "", "", "", "", None, "", None)
    (row,) = ask("ListAllocations", view=replace(ALLOCATED, allocations=Allocations((nameless,), {})))[0]
    assert parse_allocation(row) == nameless


def test_counters_say_whether_the_device_was_given() -> None:
    rows, _ = page(view=ALLOCATED)
    assert [parse_counter(row).allocated for row in rows] == [None, True, False, None]
    assert all("Allocated" not in row for row in page()[0])


def test_counters() -> None:
    rows, total = page()
    assert total == 4
    parsed = [parse_counter(row) for row in rows]
    assert [(row.owner, row.device, row.alive) for row in parsed] == [(u.owner, u.device, u.alive) for u in VIEW.usage]
    assert parsed[1].counts.calls == {
        "submit": 100,
        "alloc": 20,
        "free": 0,
        "map": 0,
        "wait": 7,
        "context": 0,
        "other": 0,
    }
    assert (parsed[1].counts.errors or {})["submit"] == 10
    assert "submit" not in {*parsed[2].counts.calls, *(parsed[2].counts.errors or {"submit": 0})}


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({"Pod": "web-0"}, [1, 2]),
        ({"Pod": "web-0", "Device": NPU}, [2]),
        ({"Pod": ""}, [0, 3]),
        ({"Kind": "unknown"}, [3]),
        ({"Alive": False}, [0]),
        ({"Vendor": "doorbell"}, [0, 2]),
        ({"Namespace": "sho"}, []),
    ],
)
def test_filter(wanted: dict[str, object], found: list[int]) -> None:
    rows, total = page(wanted)
    assert [parse_counter(row).owner for row in rows] == [VIEW.usage[i].owner for i in found]
    assert total == len(found)


@pytest.mark.parametrize("wanted", [{"pod": "x"}, {"Calls": "x"}, {"Pod": True}, {"Alive": "true"}])
def test_filter_refuses(wanted: dict[str, object]) -> None:
    assert page(wanted) == api.INVALID_ARGS


def test_pages_are_bounded_and_whole() -> None:
    view = many(1234)
    owners = [usage.owner for usage in view.usage]
    rows: list[Any] = []
    while len(rows) < 1234:
        found, total = page({}, len(rows), 10_000, view)
        assert total == 1234
        assert len(found) == min(MAX_ROWS, 1234 - len(rows))
        rows += found
    assert [parse_counter(row).owner for row in rows] == owners
    assert len(page({}, 0, 7, view)[0]) == 7
    assert page({}, 1234, 7, view) == page({}, 2**32 - 1, 0, view) == [[], 1234]


def test_nothing_is_counted_while_no_hook_is_up() -> None:
    assert page(view=OFF) == [[], 0]
    assert all("Counters" not in device for device in ask("ListDevices", view=OFF)[0])
    (values,) = ask("GetAll", "s", api.NODE.name, interface=api.PROPERTIES.name, view=OFF)
    assert "CountingSince" not in values
    assert parse_node(values).counting_since is None


def test_properties() -> None:
    def get(name: str, path: str = api.PATH, of: str = api.NODE.name) -> Any:
        return ask("Get", "ss", of, name, path=path, interface=api.PROPERTIES.name)

    assert get("Version") == ["1.2.3"]
    assert get("Simulated") == [False]
    assert get("CountingSince") == [1700000000]
    assert get("NumaNode", GPU_PATH, api.DEVICE.name) == [0]
    assert get("NumaNode", NPU_PATH, api.DEVICE.name) == api.ABSENT
    assert get("Nonsense") == api.UNKNOWN_PROPERTY
    assert get("Version", GPU_PATH) == api.UNKNOWN_INTERFACE
    (values,) = ask("GetAll", "s", api.PEER.name, interface=api.PROPERTIES.name)
    assert values == {}


def test_properties_cannot_be_set() -> None:
    value = Variant("s", "x")
    for name, error in (("Version", api.READ_ONLY), ("Nonsense", api.UNKNOWN_PROPERTY)):
        assert ask("Set", "ssv", api.NODE.name, name, value, interface=api.PROPERTIES.name) == error


@pytest.mark.parametrize(
    ("member", "signature", "body", "where", "error"),
    [
        ("ListDevices", "s", ["x"], {}, api.INVALID_ARGS),
        ("GetCounters", "", [], {}, api.INVALID_ARGS),
        ("GetWeather", "", [], {}, api.UNKNOWN_METHOD),
        ("ListDevices", "", [], {"path": GPU_PATH}, api.UNKNOWN_INTERFACE),
        ("ListDevices", "", [], {"path": api.DEVICES_PATH + "/nothing"}, api.UNKNOWN_OBJECT),
        ("ListDevices", "", [], {"path": "/io/kubenpu/devic"}, api.UNKNOWN_OBJECT),
        ("Introspect", "", [], {"interface": "io.kubenpu.Node2"}, api.UNKNOWN_INTERFACE),
    ],
)
def test_errors(member: str, signature: str, body: list[object], where: dict[str, Any], error: str) -> None:
    assert ask(member, signature, *body, **where) == error


def test_usage_arrives_as_it_was_sent() -> None:
    """But for parts of a second; a measure that is not known stays missing, what is less than 0 stays so."""
    (rows,) = ask("GetUsage", "stt", "label:team", 0, 2**64 - 1)
    whole = [replace(row, since=1700000000, until=1700003600) for row in USAGE]
    assert [parse_usage(row) for row in rows] == whole
    assert "Namespace" not in rows[0]


def test_usage_that_cannot_be_had_is_refused() -> None:
    assert ask("GetUsage", "stt", "nothing", 0, 1) == api.FAILED


def test_usage_is_slow_and_free_for_all() -> None:
    method = find_special(call("GetUsage", "stt", "pod", 0, 1))
    assert method is not None
    assert (method.slow, method.action) == (True, "")


def test_a_call_without_an_interface_is_found() -> None:
    message = over_the_wire(Message("io.kubenpu", api.PATH, None, "ListDevices", serial=9))
    assert Answers(objects, NODE.usage).answer(message).message_type is MessageType.METHOD_RETURN


@pytest.mark.parametrize("path", ["/", "/io", api.PATH, api.DEVICES_PATH])
def test_tree_is_connected(path: str) -> None:
    (text,) = ask("Introspect", path=path, interface=api.INTROSPECTABLE.name)
    below = "/".join([path.rstrip("/"), *(text.partition('<node name="')[2].partition('"')[:1])])
    assert ask("Ping", path=below, interface=api.PEER.name) == []


def test_reload_is_not_answered_without_asking() -> None:
    reload = find_special(call("Reload"))
    assert reload is not None
    assert reload.action == "io.kubenpu.reload"
    assert find_special(call("ListDevices")) is None
    assert find_special(call("Reload", path=GPU_PATH)) is None
    assert find_special(call("Reload", interface="io.kubenpu.Other")) is None
    with pytest.raises(KeyError):
        Answers(objects, NODE.usage).answer(call("Reload"))


def test_how_calls_end_is_left_out_where_nobody_sees_it() -> None:
    plain = ("file_ioctl",)
    usage = Usage(Owner(OwnerKind.HOST, unit="cuda"), IGPU, "nvidia", counts(0, 40), 1.0, True, plain)
    hooks = (HookStatus("file_ioctl", "lsm", "", 5), HookStatus("drm_ioctl", "off", "no drm", 5, needed=False))
    view = dataclasses.replace(VIEW, usage=(usage,), device_usage=(), hooks=hooks)
    ((row,), _) = page(view=view)
    assert row["Calls"]["alloc"] == 40
    assert not {"Errors", "WaitNs"} & set(row)
    assert objects(view).node["Hooks"][1] == {"file_ioctl": "lsm"}


# ---- hostile names ----

HOSTILE = ["\0", "a\0b", "\udcff", "\ud800", "\x1b[31m", "\n", '"', "x" * 4096, "\ufffe", "\U0010ffff"]


@pytest.mark.parametrize("text", HOSTILE, ids=ascii)
def test_hostile_names_are_shown_and_harmless(text: str) -> None:
    usage = Usage(Owner(OwnerKind.POD, text, text, text, text, text), IGPU, "i915", counts(1), 1.0, True)
    view = dataclasses.replace(VIEW, node=text, usage=(usage, *VIEW.usage))
    (row, *others), _ = page(view=view)
    assert len(others) == len(VIEW.usage)
    assert row["Pod"].isprintable()
    assert 0 < len(row["Pod"]) <= 512
    assert ask("ListWorkloads", view=view)[0][0]["Namespace"] == row["Namespace"]
    emissions, _ = plan_signals(announce_all(objects()), objects(view))
    assert {over_the_wire(signal_message(each)).member for each in emissions} == {"PropertiesChanged", "WorkloadSeen"}


@settings(deadline=None, max_examples=50)
@given(st.text(st.characters(codec=None), max_size=20))
def test_any_text_goes_over_the_wire(text: str) -> None:
    owner = Owner(OwnerKind.HOST, unit=text)
    view = dataclasses.replace(VIEW, usage=(Usage(owner, text, text, counts(1), 1.0, True),))
    ((row,), total) = page(view=view)
    assert total == 1
    assert (row.get("Unit", "") == "") == (text == "")


# ---- calls that take long ----


def test_places_are_for_several_users_and_for_root_beside_them() -> None:
    async def fill() -> None:
        places, forever = Places(3), asyncio.Event()

        def ask(user: int) -> bool:
            free = places.free_for(user)
            if free:
                places.begin(user, wait(forever))
            return free

        asked = {user: [ask(user) for _ in range(3)] for user in (1000, 1001, 1002, 0)}
        assert asked == {
            1000: [True, True, False],
            1001: [True, False, False],
            1002: [False, False, False],
            0: [True, True, False],
        }
        forever.set()
        await asyncio.gather(*places)
        assert (len(places), ask(1002)) == (0, True)
        await asyncio.gather(*places)

    asyncio.run(fill())


async def wait(event: asyncio.Event) -> None:
    await event.wait()
