# SPDX-License-Identifier: Apache-2.0
"""The D-Bus interface, declared once: names, methods, properties, signals, errors; its fields are those of fields.py.

Server, client, introspection XML, documentation and the tests of bus policy and polkit actions are made from it. Pure:
knows no wire.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple, TypeVar

from kubenpu.api.fields import COUNT_FIELDS, COUNTS, DEVICE_FIELDS, NODE_FIELDS, Field, read_present
from kubenpu.model.usage import BY, BY_LABEL

NAME = "io.kubenpu"
PATH = "/io/kubenpu"
DEVICES_PATH = PATH + "/device"
DESKTOP = "org.freedesktop.DBus"
MAX_CALL_BYTES = 64 * 1024

FAILED = NAME + ".Error.Failed"
ABSENT = NAME + ".Error.Absent"
ACCESS_DENIED = DESKTOP + ".Error.AccessDenied"
INVALID_ARGS = DESKTOP + ".Error.InvalidArgs"
LIMITS_EXCEEDED = DESKTOP + ".Error.LimitsExceeded"
READ_ONLY = DESKTOP + ".Error.PropertyReadOnly"
UNKNOWN_INTERFACE = DESKTOP + ".Error.UnknownInterface"
UNKNOWN_METHOD = DESKTOP + ".Error.UnknownMethod"
UNKNOWN_OBJECT = DESKTOP + ".Error.UnknownObject"
UNKNOWN_PROPERTY = DESKTOP + ".Error.UnknownProperty"

Fields = Mapping[str, tuple[str, object]]
"""An a{sv} before it is encoded: key -> signature and value; a value of signature a{sv} is Fields again."""

T = TypeVar("T")


class Argument(NamedTuple):
    name: str
    signature: str


class Method(NamedTuple):
    """`action`: the polkit action that a caller other than root needs; "" when every local user may call it.

    `slow`: it may take seconds, so other calls are answered before it.
    """

    name: str
    takes: tuple[Argument, ...]
    gives: tuple[Argument, ...]
    help: str
    action: str = ""
    slow: bool = False

    @property
    def signature(self) -> str:
        return "".join(argument.signature for argument in self.takes)

    @property
    def reply_signature(self) -> str:
        return "".join(argument.signature for argument in self.gives)


class Property(NamedTuple):
    """Read-only. `constant`: it does not change while the service runs."""

    name: str
    signature: str
    help: str
    constant: bool = False


class Signal(NamedTuple):
    name: str
    carries: tuple[Argument, ...]
    help: str

    @property
    def signature(self) -> str:
        return "".join(argument.signature for argument in self.carries)


class Interface(NamedTuple):
    name: str
    methods: tuple[Method, ...] = ()
    properties: tuple[Property, ...] = ()
    signals: tuple[Signal, ...] = ()


def read_fields(fields: Iterable[Field[T]], subject: T) -> Fields:
    """Those that have a value."""
    return {field.name: (field.signature, _nested(field, value)) for field, value in read_present(fields, subject)}


def _nested(field: Field[T], value: Any) -> object:
    return read_fields(COUNT_FIELDS, value) if field.shape is COUNTS else value


# ---- the interfaces ----

CONSTANT = {"Version", "NodeName", "Simulated", "Address"}


def _properties(fields: Iterable[Field[T]]) -> tuple[Property, ...]:
    return tuple(Property(field.name, field.signature, field.help, field.name in CONSTANT) for field in fields)


ROWS = Argument("rows", "aa{sv}")
_USAGE = (Argument("by", "s"), Argument("since", "t"), Argument("until", "t"))
NODE = Interface(
    NAME + ".Node1",
    methods=(
        Method("ListDevices", (), (ROWS,), "accelerators, with the properties of io.kubenpu.Device1"),
        Method("ListWorkloads", (), (ROWS,), "pods, units and unnamed workloads that used one"),
        Method(
            "GetCounters",
            (Argument("filter", "a{sv}"), Argument("offset", "u"), Argument("limit", "u")),
            (ROWS, Argument("total", "u")),
            "a page of counts, one row per workload and device; total: rows that the filter selects",
        ),
        Method("ListAllocations", (), (ROWS,), "devices that the kubelet has given to containers"),
        Method(
            "GetUsage",
            _USAGE,
            (ROWS,),
            f"what was used between two Unix times, each moved back to a whole quarter of an hour, by {', '.join(BY)} "
            f"or {BY_LABEL}KEY; one row per group and device",
            slow=True,
        ),
        Method(
            "GetUsagePage",
            (*_USAGE, Argument("offset", "u"), Argument("limit", "u")),
            (ROWS, Argument("total", "u")),
            "a page of the same: rows of devices and of what is unattributed on each, of groups as many as limit; "
            "total: rows of groups on all pages",
            slow=True,
        ),
        Method("Reload", (), (), "reads devices and driver tables again", action=NAME + ".reload"),
    ),
    properties=_properties(NODE_FIELDS),
    signals=(
        Signal("DeviceAdded", (Argument("device", "o"),), "an accelerator appeared"),
        Signal("DeviceRemoved", (Argument("device", "o"),), "an accelerator is gone"),
        Signal("WorkloadSeen", (Argument("workload", "a{sv}"),), "a pod or unit made its first call, and has its name"),
    ),
)
DEVICE = Interface(NAME + ".Device1", properties=_properties(DEVICE_FIELDS))
INTROSPECTABLE = Interface(
    DESKTOP + ".Introspectable", methods=(Method("Introspect", (), (Argument("xml", "s"),), "what an object has"),)
)
PEER = Interface(
    DESKTOP + ".Peer",
    methods=(
        Method("Ping", (), (), "nothing"),
        Method("GetMachineId", (), (Argument("machine_id", "s"),), "id of the machine"),
    ),
)
PROPERTIES = Interface(
    DESKTOP + ".Properties",
    methods=(
        Method("Get", (Argument("interface", "s"), Argument("property", "s")), (Argument("value", "v"),), "one value"),
        Method("GetAll", (Argument("interface", "s"),), (Argument("values", "a{sv}"),), "all values"),
        Method(
            "Set",
            (Argument("interface", "s"), Argument("property", "s"), Argument("value", "v")),
            (),
            "refused, nothing can be set",
        ),
    ),
    signals=(
        Signal(
            "PropertiesChanged",
            (Argument("interface", "s"), Argument("changed", "a{sv}"), Argument("invalidated", "as")),
            "values that changed, at most once a second; invalidated: those that became absent",
        ),
    ),
)
OBJECT_MANAGER = Interface(
    DESKTOP + ".ObjectManager",
    methods=(Method("GetManagedObjects", (), (Argument("objects", "a{oa{sa{sv}}}"),), "all devices"),),
    signals=(
        Signal("InterfacesAdded", (Argument("object", "o"), Argument("interfaces", "a{sa{sv}}")), "a device appeared"),
        Signal("InterfacesRemoved", (Argument("object", "o"), Argument("interfaces", "as")), "a device is gone"),
    ),
)
OF_EVERY_OBJECT = (INTROSPECTABLE, PEER, PROPERTIES)
OF_NODE = (NODE, OBJECT_MANAGER, *OF_EVERY_OBJECT)
OF_DEVICE = (DEVICE, *OF_EVERY_OBJECT)


def device_path(address: str) -> str:
    """Object path of a device: what is no letter or digit becomes _ and two hexadecimal digits."""
    encoded = address.encode(errors="surrogateescape") or b"\0"
    return DEVICES_PATH + "/" + "".join(chr(b) if chr(b).isalnum() and b < 128 else f"_{b:02x}" for b in encoded)


def render_xml(interfaces: Iterable[Interface], children: Iterable[str] = ()) -> str:
    """What Introspect answers; `children` are names of objects below."""
    lines = [
        '<!DOCTYPE node PUBLIC "-//freedesktop//DTD D-BUS Object Introspection 1.0//EN"',
        ' "http://www.freedesktop.org/standards/dbus/1.0/introspect.dtd">',
        "<node>",
    ]
    for interface in interfaces:
        lines += [f' <interface name="{interface.name}">', *_members(interface), " </interface>"]
    lines += [f' <node name="{name}"/>' for name in children]
    return "\n".join([*lines, "</node>", ""])


def _members(interface: Interface) -> Iterable[str]:
    for method in interface.methods:
        arguments = [*((a, "in") for a in method.takes), *((a, "out") for a in method.gives)]
        yield from _block("method", method.name, [_argument(a, f' direction="{way}"') for a, way in arguments])
    for value in interface.properties:
        yield f'  <property name="{value.name}" type="{value.signature}" access="read">'
        changes = "const" if value.constant else "true"
        yield f'   <annotation name="{DESKTOP}.Property.EmitsChangedSignal" value="{changes}"/>'
        yield "  </property>"
    for signal in interface.signals:
        yield from _block("signal", signal.name, [_argument(a) for a in signal.carries])


def _block(tag: str, name: str, arguments: list[str]) -> list[str]:
    if not arguments:
        return [f'  <{tag} name="{name}"/>']
    return [f'  <{tag} name="{name}">', *arguments, f"  </{tag}>"]


def _argument(argument: Argument, extra: str = "") -> str:
    return f'   <arg name="{argument.name}" type="{argument.signature}"{extra}/>'
