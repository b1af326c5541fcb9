# SPDX-License-Identifier: Apache-2.0
"""The client of kubenpud's D-Bus interface, for kubenpuctl: blocking, read-only, in one thread.

Owns one connection to the bus from the first call to close(). Never starts kubenpud: a service that somebody stopped
stays stopped. Refuses answers from a process that is neither root's nor of the same user, whatever the policy of the
bus let it call itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Self

from kubenpu.api import dbus as api
from kubenpu.api.fields import MAX_ROWS
from kubenpu.exporters.dbus_connection import (
    CALL_TIMEOUT_S,
    CallError,
    Connection,
    connected,
    from_wire,
    system_bus_address,
)
from kubenpu.exporters.dbus_next_parts import Message, MessageFlag, Variant
from kubenpu.model.allocation import Allocation
from kubenpu.model.errors import SourceError, UnreachableError
from kubenpu.model.identity import HostKind, Owner, OwnerKind
from kubenpu.model.usage import Part, UsageRow, add_up

MAX_REPLY_BYTES = 32 << 20
USAGE_TIMEOUT_S = 90.0  # others may have asked before us
BUSY_S, BUSY_PAUSE_S = 10.0, 0.5
USAGE_TRIES = 3
START = "Start it: systemctl start kubenpud"
LOOK = "Look at it: systemctl status kubenpud"
NO_POLICY = "Install /usr/share/dbus-1/system.d/io.kubenpu.conf and run: systemctl reload dbus"
_ABSENT = {f"{api.DESKTOP}.Error.{name}" for name in ("ServiceUnknown", "NameHasNoOwner")}
_ANSWERS = {api.FAILED, api.INVALID_ARGS, api.LIMITS_EXCEEDED}

Filter = Mapping[str, str | bool]


@dataclass(frozen=True, slots=True)
class NodeRow:
    """What kubenpud says of itself. `counting_since`: Unix time, None while nothing is counted."""

    version: str
    node: str
    simulated: bool
    hooks: Mapping[str, str]
    counting_since: int | None


@dataclass(frozen=True, slots=True)
class CountsRow:
    """By label of the kind; a kind that cannot be seen is missing. `since`: Unix time. None: the ends are not seen."""

    calls: Mapping[str, int]
    errors: Mapping[str, int] | None
    wait_ns: int | None
    since: int

    @property
    def failed(self) -> int | None:
        """Errors of all kinds."""
        return None if self.errors is None else sum(self.errors.values())

    @property
    def wait_seconds(self) -> float | None:
        return None if self.wait_ns is None else self.wait_ns / 1e9


@dataclass(frozen=True, slots=True)
class DeviceRow:
    """`nodes` are name below /dev, major, minor. `counts` None: nothing is counted on it now."""

    address: str
    driver: str | None
    vendor: str | None
    pci_id: str | None
    numa_node: int | None
    nodes: tuple[tuple[str, int, int], ...]
    counts: CountsRow | None


@dataclass(frozen=True, slots=True)
class CounterRow:
    """One workload on one device. `engine_ns` by engine and `memory` by region, in bytes: None: nobody tells them.

    `allocated` None: it is not known.
    """

    owner: Owner
    device: str
    vendor: str | None
    alive: bool
    counts: CountsRow
    engine_ns: Mapping[str, int] | None = None
    memory: Mapping[str, int] | None = None
    allocated: bool | None = None

    @property
    def engine_seconds(self) -> float | None:
        """Of all engines."""
        return None if self.engine_ns is None else sum(self.engine_ns.values()) / 1e9


class NodeClient:
    """A context manager. Every call raises UnreachableError when kubenpud or the bus does not answer, CallError when
    kubenpud refuses."""

    def __init__(self, address: str = "", timeout_s: float = CALL_TIMEOUT_S) -> None:
        self._address = address or system_bus_address()
        self._timeout_s = timeout_s
        self._runner = asyncio.Runner()
        self._undo = contextlib.AsyncExitStack()
        self._connection: Connection | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._runner.run(self._undo.aclose())
        self._runner.close()

    # ---- calls ----

    def node(self) -> NodeRow:
        (values,) = self._call("GetAll", "s", [api.NODE.name], interface=api.PROPERTIES)
        return parse_node(values)

    def devices(self) -> list[DeviceRow]:
        (rows,) = self._call("ListDevices")
        return [parse_device(row) for row in rows]

    def counters(self, wanted: Filter | None = None) -> list[CounterRow]:
        """All pages. Keys of the filter are those of FILTER_FIELDS."""
        given = {name: Variant("b" if isinstance(v, bool) else "s", v) for name, v in (wanted or {}).items()}
        found: list[CounterRow] = []
        while True:
            rows, total = self._call("GetCounters", "a{sv}uu", [given, len(found), MAX_ROWS])
            found += map(parse_counter, rows)
            if not rows or len(found) >= total:
                return found

    def allocations(self) -> list[Allocation]:
        """What the kubelet has given to whom."""
        (rows,) = self._call("ListAllocations")
        return [parse_allocation(row) for row in rows]

    def usage(self, by: str, since: int, until: int) -> list[UsageRow]:
        """What was used between two Unix times, see model/usage.py. All pages, of one and the same history."""
        for _ in range(USAGE_TRIES):
            pages = list(self._usage_pages(by, since, until))
            whole, *others = ([row for row in page if row.part is not Part.WORKLOAD] for page in pages)
            rows = [*whole, *(row for page in pages for row in page if row.part is Part.WORKLOAD)]
            if not others or (all(each == whole for each in others) and add_up(rows)):
                return rows
        raise SourceError("the history changes while it is read", "Ask for a time that is over")

    def _usage_pages(self, by: str, since: int, until: int) -> Iterator[list[UsageRow]]:
        offset, total = 0, 1
        while offset < total:
            rows, total = self._usage_page([by, since, until, offset, MAX_ROWS])
            yield [parse_usage(row) for row in rows]
            offset += MAX_ROWS

    def _usage_page(self, body: list[object]) -> list[Any]:
        """Asked for again for a moment, while as many others wait as may."""
        end = time.monotonic() + BUSY_S
        while True:
            try:
                return self._call("GetUsagePage", "sttuu", body, timeout_s=USAGE_TIMEOUT_S)
            except CallError as e:
                if e.name != api.LIMITS_EXCEEDED or time.monotonic() > end:
                    raise
            time.sleep(BUSY_PAUSE_S)

    def _call(
        self,
        member: str,
        signature: str = "",
        body: list[object] | None = None,
        interface: api.Interface = api.NODE,
        timeout_s: float | None = None,
    ) -> list[Any]:
        flags = MessageFlag.NO_AUTOSTART
        message = Message(api.NAME, api.PATH, interface.name, member, flags=flags, signature=signature, body=body or [])
        return [from_wire(value) for value in self._runner.run(self._ask(message, timeout_s or self._timeout_s))]

    async def _ask(self, message: Any, timeout_s: float) -> list[Any]:
        try:
            async with asyncio.timeout(timeout_s):
                if self._connection is None:
                    self._connection = await self._undo.enter_async_context(connected(self._address, MAX_REPLY_BYTES))
                message.destination = await _service(self._connection)
                return await self._connection.call(message, timeout_s)
        except TimeoutError as e:
            raise UnreachableError(f"kubenpud does not answer within {timeout_s:g} s", LOOK) from e
        except SourceError as e:
            if isinstance(e, CallError) and e.name in _ANSWERS:
                raise
            raise _explain(e) from e


def _explain(error: SourceError) -> UnreachableError:
    name = error.name if isinstance(error, CallError) else ""
    if name in _ABSENT:
        return UnreachableError("kubenpud is not on the message bus", START)
    if name == api.ACCESS_DENIED:
        return UnreachableError("the message bus lets nobody ask kubenpud", NO_POLICY)
    return UnreachableError(error.cause, error.remedy)


async def _service(connection: Connection) -> str:
    """The connection behind the name; it is called, not the name, which may change hands meanwhile."""
    (owner,) = await connection.ask_bus("GetNameOwner", "s", api.NAME)
    (user,) = await connection.ask_bus("GetConnectionUnixUser", "s", owner)
    if user not in {0, os.geteuid()}:
        raise SourceError(f"{api.NAME} belongs to user {user} and not to root", "Remove the policy that allows it")
    return str(owner)


# ---- rows ----


def parse_node(values: Mapping[str, Any]) -> NodeRow:
    return NodeRow(
        values["Version"],
        values["NodeName"],
        values.get("Simulated", False),
        values.get("Hooks", {}),
        values.get("CountingSince"),
    )


def parse_device(row: Mapping[str, Any]) -> DeviceRow:
    counters = row.get("Counters")
    return DeviceRow(
        row["Address"],
        row.get("Driver"),
        row.get("Vendor"),
        row.get("PciId"),
        row.get("NumaNode"),
        tuple((name, major, minor) for name, major, minor in row.get("Nodes", ())),
        _counts(counters) if counters else None,
    )


def parse_counter(row: Mapping[str, Any]) -> CounterRow:
    told = (row.get("EngineNs"), row.get("MemoryBytes"), row.get("Allocated"))
    return CounterRow(_owner_of(row), row["Device"], row.get("Vendor"), row["Alive"], _counts(row), *told)


def parse_allocation(row: Mapping[str, Any]) -> Allocation:
    return Allocation(
        row.get("Namespace", ""),
        row.get("Pod", ""),
        row.get("Container", ""),
        row.get("Resource", ""),
        row.get("DeviceId", ""),
        row.get("Claim", ""),
        row.get("Device"),
        row.get("PodUid", ""),
        row.get("IdleSince"),
    )


def parse_usage(row: Mapping[str, Any]) -> UsageRow:
    names = ("Namespace", "Pod", "Container", "Unit", "Label")
    return UsageRow(
        Part(row["Part"]),
        row["Device"],
        row.get("Vendor"),
        row["Since"],
        row["Until"],
        row["Amounts"],
        *(row.get(name, "") for name in names),
    )


def _counts(row: Mapping[str, Any]) -> CountsRow:
    return CountsRow(row["Calls"], row.get("Errors"), row.get("WaitNs"), row["Since"])


def _owner_of(row: Mapping[str, Any]) -> Owner:
    return Owner(
        kind=OwnerKind(row["Kind"]),
        namespace=row.get("Namespace", ""),
        pod=row.get("Pod", ""),
        container=row.get("Container", ""),
        pod_uid=row.get("PodUid", ""),
        container_id=row.get("ContainerId", ""),
        unit=row.get("Unit", ""),
        host_kind=HostKind(row["HostKind"]) if "HostKind" in row else None,
        image=row.get("Image", ""),
    )
