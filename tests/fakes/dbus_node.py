# SPDX-License-Identifier: Apache-2.0
"""A node that D-Bus and Varlink can be served for: a View that tests change, and a record of what was asked of it."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kubenpu.api import dbus as api
from kubenpu.exporters.dbus_connection import decode, header_and_body_bytes
from kubenpu.exporters.dbus_next_parts import Message
from kubenpu.exporters.dbus_objects import Objects
from kubenpu.exporters.picture import Picture
from kubenpu.model.allocation import Allocation, Allocations
from kubenpu.model.device import Device, Node, Visibility
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import ZERO, Counts, HookStatus
from kubenpu.model.usage import Part, UsageRow
from kubenpu.model.view import ClientUsage, DeviceUsage, Usage, View

IGPU, NPU = "0000:00:02.0", "npu.0"
GPU_PATH, NPU_PATH = "/io/kubenpu/device/0000_3a00_3a02_2e0", "/io/kubenpu/device/npu_2e0"
VISIBILITY = {"i915": {"submit": Visibility.ALWAYS}, "doorbell": {"submit": Visibility.NEVER}}
POD = Owner(OwnerKind.POD, namespace="shop", pod="web-0", container="main", pod_uid="u1", container_id="c1")
HOST = Owner(OwnerKind.HOST, unit="ssh.service")
LOST = Owner(OwnerKind.UNKNOWN, pod_uid="u9", container_id="c9")


def counts(*calls: int, wait_ns: int = 0) -> Counts:
    calls = calls + (0,) * (7 - len(calls))
    return Counts(calls, tuple(n // 10 for n in calls), wait_ns)


VIEW = View(
    version="1.2.3",
    node="node-1",
    simulated=False,
    counting_since=1700000000.25,
    devices=(
        Device(IGPU, "drm", "i915", "i915", "8086:5917", 0, (Node("dri/card1", 226, 1),), "/sys/x"),
        Device(NPU, "accel", None, None, None, None, (), "/sys/y"),
    ),
    usage=(
        Usage(HOST, NPU, "doorbell", counts(0, 0, 0, 0, 0, 0, 12), 1700000200.0, False),
        Usage(
            POD,
            IGPU,
            "i915",
            counts(100, 20, 0, 0, 7, wait_ns=1_500_000_000),
            1700000100.5,
            True,
            clients=ClientUsage(POD, IGPU, (("render", 7), ("copy", 0)), (("system0", 4096),), 0, 10**9),
        ),
        Usage(POD, NPU, "doorbell", counts(0, 5), 1700000101.5, True),
        Usage(LOST, IGPU, "i915", counts(3), 1700000300.0, True),
    ),
    device_usage=(DeviceUsage(IGPU, "i915", counts(140, 21, 0, 0, 7), ZERO, {}, 0, 1700000000.25),),
    hooks=(HookStatus("drm_ioctl", "fentry", "", 5),),
    sources=(),
    dropped={},
    slots_used=4,
    slots_max=8192,
    index_rebuilds=1,
)
USAGE = [
    UsageRow(Part.DEVICE, IGPU, "i915", 1700000000.5, 1700003600.25, {"calls.submit": 50, "present_ms": 3_600_000}),
    UsageRow(Part.UNATTRIBUTED, IGPU, "i915", 1700000000.5, 1700003600.25, {"calls.submit": -7}),
    UsageRow(Part.WORKLOAD, IGPU, "i915", 1700000000.5, 1700003600.25, {"calls.submit": 57}, "shop", label="blue"),
]
ALLOCATIONS = Allocations(
    (
        Allocation("shop", "web-0", "main", "gpu.intel.com/i915", "card1-0", "", IGPU, "u1", 100.5),
        Allocation("shop", "job-0", "main", "gpu.x.example", "pool/mystery", "shop/claim", None, "", None),
    ),
    {"shop/web-0/main": (IGPU,), "shop/job-0/main": (None,)},
)
ALLOCATED = replace(
    VIEW,
    devices=(VIEW.devices[0], replace(VIEW.devices[1], driver="rocket")),
    allocations=ALLOCATIONS,
    boot_unix_s=1699999900.0,
)
OFF = replace(VIEW, hooks=(HookStatus("drm_ioctl", "off", "no drm", 5),), counting_since=None)


def many(number: int) -> View:
    """A View with so many workloads of one container on one device."""
    usage = tuple(
        Usage(
            Owner(OwnerKind.POD, f"team-{i // 1000:03}", f"worker-{i:05}", "main", f"{i:036}", f"{i:064}"),
            IGPU,
            "i915",
            counts(i, i, i, i, i, i, i),
            1700000000.0,
            True,
        )
        for i in range(number)
    )
    return replace(VIEW, usage=usage)


def picture(view: View = VIEW) -> Picture:
    return Picture(view, frozenset({"i915"}))


def objects(view: View = VIEW) -> Objects:
    return Objects(picture(view))


def call(member: str, signature: str = "", *body: object, path: str = api.PATH, interface: str = api.NODE.name) -> Any:
    message = Message("io.kubenpu", path, interface, member, serial=9, signature=signature, body=list(body))
    arrived = over_the_wire(message)
    arrived.sender = ":1.7"  # the bus puts it in
    return arrived


def over_the_wire(message: Any) -> Any:
    message.serial = message.serial or 1
    data = bytes(message._marshall())
    assert sum(header_and_body_bytes(data[:16])) == len(data)
    return decode(data)


class FakeNode:
    """`view_count` is how often it was asked for a View, `notes` what it was told of the interface."""

    def __init__(self, view: View = VIEW, source: str = "dbus") -> None:
        self.shown = view
        self.source = source
        self.view_count = 0
        self.reloads = 0
        self.trouble = ""
        self.notes: list[str] = []
        self.dropped = 0
        self.hold: threading.Event | None = None
        self.hold_usage: threading.Event | None = None

    def view(self) -> View:
        self.view_count += 1
        if self.hold is not None:
            assert self.hold.wait(20)
        return self.shown

    def visibility(self, vendor: str | None) -> Mapping[str, Visibility]:
        return VISIBILITY.get(vendor or "", {})

    async def reload(self) -> None:
        self.reloads += 1
        if self.trouble:
            raise SourceError(self.trouble)

    def usage(self, by: str, since: float, until: float, page: range) -> tuple[list[UsageRow], int]:
        if self.hold_usage is not None:
            assert self.hold_usage.wait(20)
        if by == "nothing":
            raise SourceError("usage cannot be summed up by nothing")
        return USAGE[: 2 + len(page)], 1

    def note_dropped(self, count: int) -> None:
        self.dropped += count

    def note_source(self, source: str, reason: str, seconds: float) -> None:
        assert source == self.source
        assert seconds >= 0
        self.notes.append(reason)
