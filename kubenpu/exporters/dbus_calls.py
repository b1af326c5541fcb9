# SPDX-License-Identifier: Apache-2.0
"""Answers calls of the D-Bus interface that change nothing, and those of D-Bus's standard interfaces.

Data comes from a callable that gives the Objects of now. Knows neither connection nor thread: a message goes in, its
reply comes out. Refuses what api/dbus.py does not declare, a filter it does not know, and a listing above its limit.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kubenpu.api import dbus as api
from kubenpu.api.dbus import Fields, Interface, Method
from kubenpu.api.fields import ALLOCATION_FIELDS, MAX_ROWS, MAX_USAGE_GROUPS, MAX_WORKLOADS, USAGE_FIELDS
from kubenpu.exporters.dbus_connection import fields_to_wire, from_wire, to_wire
from kubenpu.exporters.dbus_next_parts import Message, Variant
from kubenpu.exporters.dbus_objects import Emission, Objects, read_workload
from kubenpu.exporters.picture import FILTERS, find_workloads
from kubenpu.model.errors import KubeNpuError
from kubenpu.model.text import clean_label
from kubenpu.model.usage import UsageRow

MACHINE_ID = Path("/etc/machine-id")
UsageOf = Callable[[str, float, float, range], tuple[list[UsageRow], int]]
"""What was used: by what, since and until when, and which of the groups; with how many of these there are. Raises
KubeNpuError when there is no answer."""

DECLARED = {interface.name: interface for interface in (*api.OF_NODE, *api.OF_DEVICE)}


class RefusedError(Exception):
    """A call that gets an error for an answer. `name` is the error's D-Bus name."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(text)
        self.name = name


def find_special(call: Any) -> Method | None:
    """The method when it needs a right or is slow; None for all others, also for those that are none."""
    if call.path != api.PATH or call.interface not in {None, api.NODE.name}:
        return None
    return next((m for m in api.NODE.methods if (m.action or m.slow) and m.name == call.member), None)


def refuse(call: Any, name: str, text: str) -> Any:
    return Message.new_error(call, name, clean_label(text))


def done(call: Any) -> Any:
    return Message.new_method_return(call)


class Answers:
    """`answer` is a reply to every call there can be; it raises nothing that the caller is to blame for."""

    def __init__(self, objects: Callable[[], Objects], usage: UsageOf) -> None:
        self._objects = objects
        self._usage = usage
        self._handlers: Mapping[str, Callable[[Any], list[object]]] = {
            f"{api.NODE.name}.ListDevices": self._list_devices,
            f"{api.NODE.name}.ListWorkloads": self._list_workloads,
            f"{api.NODE.name}.GetCounters": self._get_counters,
            f"{api.NODE.name}.ListAllocations": self._list_allocations,
            f"{api.NODE.name}.GetUsage": self._get_usage,
            f"{api.NODE.name}.GetUsagePage": self._get_usage_page,
            f"{api.OBJECT_MANAGER.name}.GetManagedObjects": self._managed_objects,
            f"{api.INTROSPECTABLE.name}.Introspect": self._introspect,
            f"{api.PEER.name}.Ping": lambda _call: [],
            f"{api.PEER.name}.GetMachineId": self._machine_id,
            f"{api.PROPERTIES.name}.Get": self._get,
            f"{api.PROPERTIES.name}.GetAll": self._get_all,
            f"{api.PROPERTIES.name}.Set": self._set,
        }

    def answer(self, call: Any) -> Any:
        try:
            interface, method = self._find(call)
            values = self._handlers[f"{interface.name}.{method.name}"](call)
            return Message.new_method_return(call, method.reply_signature, values)
        except RefusedError as e:
            return refuse(call, e.name, str(e))
        except KubeNpuError as e:
            return refuse(call, api.FAILED, str(e))

    def _find(self, call: Any) -> tuple[Interface, Method]:
        interfaces = self._objects().interfaces(call.path)
        if not interfaces:
            raise RefusedError(api.UNKNOWN_OBJECT, f"there is no object {call.path}")
        named = [i for i in interfaces if call.interface in {None, i.name}]
        if not named:
            raise RefusedError(api.UNKNOWN_INTERFACE, f"{call.path} has no interface {call.interface}")
        for interface in named:
            for method in interface.methods:
                if method.name == call.member and method.signature == call.signature:
                    return interface, method
                if method.name == call.member:
                    text = f"{method.name} takes ({method.signature}), not ({call.signature})"
                    raise RefusedError(api.INVALID_ARGS, text)
        raise RefusedError(api.UNKNOWN_METHOD, f"{call.interface or call.path} has no method {call.member}")

    # ---- the node ----

    def _list_devices(self, _call: Any) -> list[object]:
        return [[_wire(device) for device in self._objects().devices.values()]]

    def _list_workloads(self, _call: Any) -> list[object]:
        workloads = find_workloads(self._objects().view)
        if len(workloads) > MAX_WORKLOADS:
            text = f"{len(workloads)} workloads are more than the {MAX_WORKLOADS} of a reply: page with GetCounters"
            raise RefusedError(api.LIMITS_EXCEEDED, text)
        return [[_wire(read_workload(workload)) for workload in workloads]]

    def _get_counters(self, call: Any) -> list[object]:
        given, offset, limit = call.body
        wanted = {name: _checked(name, value) for name, value in given.items()}
        rows, total = self._objects().counters(wanted, offset, min(limit or MAX_ROWS, MAX_ROWS))
        return [[_wire(row) for row in rows], total]

    def _list_allocations(self, _call: Any) -> list[object]:
        allocations = self._objects().picture.allocations()
        return [[_wire(api.read_fields(ALLOCATION_FIELDS, each)) for each in allocations]]

    def _get_usage(self, call: Any) -> list[object]:
        rows, total = self._find_usage(call, 0, MAX_USAGE_GROUPS)
        if total > MAX_USAGE_GROUPS:
            text = f"{total} groups are more than the {MAX_USAGE_GROUPS} of a reply: page with GetUsagePage"
            raise RefusedError(api.LIMITS_EXCEEDED, text)
        return [rows]

    def _get_usage_page(self, call: Any) -> list[object]:
        offset, limit = call.body[3:]
        return [*self._find_usage(call, offset, min(limit or MAX_ROWS, MAX_ROWS))]

    def _find_usage(self, call: Any, offset: int, limit: int) -> tuple[list[object], int]:
        by, since, until = call.body[:3]
        if since >= until:
            raise RefusedError(api.INVALID_ARGS, "since is not before until")
        rows, total = self._usage(by, since, until, range(offset, offset + limit))
        return [_wire(api.read_fields(USAGE_FIELDS, row)) for row in rows], total

    # ---- the standard interfaces ----

    def _managed_objects(self, _call: Any) -> list[object]:
        return [{path: {api.DEVICE.name: _wire(device)} for path, device in self._objects().devices.items()}]

    def _introspect(self, call: Any) -> list[object]:
        objects = self._objects()
        return [api.render_xml(objects.interfaces(call.path), objects.children(call.path))]

    def _machine_id(self, _call: Any) -> list[object]:
        try:
            return [MACHINE_ID.read_text(encoding="ascii").strip()]
        except (OSError, ValueError) as e:
            raise RefusedError(api.FAILED, f"{MACHINE_ID} cannot be read") from e

    def _get_all(self, call: Any) -> list[object]:
        self._declared(call.path, call.body[0])
        return [_wire(self._objects().properties(call.path, call.body[0]))]

    def _get(self, call: Any) -> list[object]:
        interface, name = call.body
        if name not in {each.name for each in self._declared(call.path, interface).properties}:
            raise RefusedError(api.UNKNOWN_PROPERTY, f"{interface} has no property {name}")
        found = self._objects().properties(call.path, interface).get(name)
        if found is None:
            raise RefusedError(api.ABSENT, f"{name} has no value now: it is not known, or nothing is counted")
        signature, value = found
        return [Variant(signature, to_wire(signature, value, clean_label))]

    def _set(self, call: Any) -> list[object]:
        interface, name, _ = call.body
        if name not in {each.name for each in self._declared(call.path, interface).properties}:
            raise RefusedError(api.UNKNOWN_PROPERTY, f"{interface} has no property {name}")
        raise RefusedError(api.READ_ONLY, f"{name} cannot be set")

    def _declared(self, path: str, name: str) -> Interface:
        for interface in self._objects().interfaces(path):
            if interface.name == name:
                return interface
        raise RefusedError(api.UNKNOWN_INTERFACE, f"{path} has no interface {name}")


def _wire(fields: Fields) -> dict[str, Any]:
    return fields_to_wire(fields, clean_label)


def _checked(name: str, value: Any) -> object:
    """One entry of a filter: a key we know, and a value of its type."""
    if name not in FILTERS:
        raise RefusedError(api.INVALID_ARGS, f"a filter has no key {name}; there are {', '.join(FILTERS)}")
    if value.signature != FILTERS[name].signature:
        raise RefusedError(api.INVALID_ARGS, f"{name} is of type {FILTERS[name].signature}, not {value.signature}")
    found: object = from_wire(value)
    return found


def signal_message(emission: Emission) -> Any:
    """A signal as it goes over the wire."""
    (signal,) = (each for each in DECLARED[emission.interface].signals if each.name == emission.member)
    signatures = [argument.signature for argument in signal.carries]
    values = [_signal_value(s, value) for s, value in zip(signatures, emission.values, strict=True)]
    return Message.new_signal(emission.path, emission.interface, emission.member, signal.signature, values)


def _signal_value(signature: str, value: Any) -> object:
    if signature == "a{sa{sv}}":
        return {name: _wire(fields) for name, fields in value.items()}
    wire: object = to_wire(signature, value, clean_label)
    return wire
