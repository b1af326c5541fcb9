# SPDX-License-Identifier: Apache-2.0
"""What subscribers are told when a View differs from the last one, and what they are not told."""

from __future__ import annotations

import dataclasses
from typing import Any

from kubenpu.api import dbus as api
from kubenpu.exporters.dbus_calls import signal_message
from kubenpu.exporters.dbus_objects import MAX_WORKLOADS_SEEN, announce_all, plan_signals
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import Usage, View
from tests.fakes.dbus_node import (
    GPU_PATH,
    IGPU,
    NPU,
    OFF,
    POD,
    VIEW,
    counts,
    many,
    objects,
    over_the_wire,
)


def changes(view: View, before: View = VIEW) -> list[tuple[str, str]]:
    emissions, _ = plan_signals(announce_all(objects(before)), objects(view))
    for emission in emissions:
        over_the_wire(signal_message(emission))
    return [(emission.path, emission.member) for emission in emissions]


def test_no_change_no_signal() -> None:
    assert changes(VIEW) == []


def test_a_device_comes_and_goes() -> None:
    less = dataclasses.replace(VIEW, devices=VIEW.devices[:1])
    assert changes(less) == [(api.PATH, "InterfacesRemoved"), (api.PATH, "DeviceRemoved")]
    assert changes(VIEW, less) == [(api.PATH, "InterfacesAdded"), (api.PATH, "DeviceAdded")]


def test_only_what_changed_is_sent() -> None:
    used = dataclasses.replace(VIEW.device_usage[0], counts=counts(999))
    emissions, _ = plan_signals(announce_all(objects()), objects(dataclasses.replace(VIEW, device_usage=(used,))))
    ((path, values),) = [(emission.path, emission.values) for emission in emissions]
    assert path == GPU_PATH
    assert values[0] == api.DEVICE.name
    assert isinstance(values[1], dict)
    assert values[1].keys() == {"Counters"}


def test_what_became_absent_is_invalidated() -> None:
    emissions, _ = plan_signals(announce_all(objects()), objects(OFF))
    gone = {emission.path: emission.values[2] for emission in emissions}
    assert gone == {GPU_PATH: ["Counters"], api.PATH: ["CountingSince"]}


def test_a_workload_is_seen_once_and_by_its_name() -> None:
    unnamed = Usage(Owner(OwnerKind.UNKNOWN, pod_uid="u2"), IGPU, "i915", counts(1), 1.0, True)
    named = dataclasses.replace(unnamed, owner=dataclasses.replace(POD, pod="web-1"))
    assert changes(dataclasses.replace(VIEW, usage=(*VIEW.usage, unnamed))) == []
    twice = dataclasses.replace(VIEW, usage=(*VIEW.usage, named, dataclasses.replace(named, device=NPU)))
    assert changes(twice) == [(api.PATH, "WorkloadSeen")]
    assert changes(twice, twice) == []


def test_many_workloads_are_told_in_several_rounds() -> None:
    announced = announce_all(objects(dataclasses.replace(VIEW, usage=())))
    told: list[Any] = []
    now = objects(many(MAX_WORKLOADS_SEEN + 10))
    for expected in (MAX_WORKLOADS_SEEN, 10, 0):
        emissions, announced = plan_signals(announced, now)
        assert len(emissions) == expected
        told += [emission.values[0] for emission in emissions]
    assert len({str(each) for each in told}) == MAX_WORKLOADS_SEEN + 10


def test_what_left_is_forgotten() -> None:
    announced = announce_all(objects(many(100)))
    _, after = plan_signals(announced, objects())
    assert after.named == {usage.owner for usage in VIEW.usage if usage.owner.kind is not OwnerKind.UNKNOWN} - (
        announced.named
    )
