# SPDX-License-Identifier: Apache-2.0
"""The D-Bus interface, declared once: names, methods, properties, signals, the fields of every a{sv}, limits, errors.

Server, client, introspection XML, documentation and the tests of bus policy and polkit actions are made from it. Pure:
reads values of the model, knows no wire. A field whose value is absent is left out, never sent as 0 or "". Most of its
types are named tuples: a dataclass costs the daemon five times the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Generic, NamedTuple, TypeVar

from kubenpu.model.device import Device
from kubenpu.model.identity import Owner
from kubenpu.model.kinds import KINDS, Kind
from kubenpu.model.sample import Counts
from kubenpu.model.view import Usage, View

NAME = "io.kubenpu"
PATH = "/io/kubenpu"
DEVICES_PATH = PATH + "/device"
DESKTOP = "org.freedesktop.DBus"
MAX_ROWS = 500  # of a page of GetCounters
MAX_WORKLOADS = 4096  # of a reply of ListWorkloads

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


class Argument(NamedTuple):
    name: str
    signature: str


class Method(NamedTuple):
    """`action`: the polkit action that a caller other than root needs; "" when every local user may call it."""

    name: str
    takes: tuple[Argument, ...]
    gives: tuple[Argument, ...]
    help: str
    action: str = ""

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


T = TypeVar("T")
S = TypeVar("S")


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One key of an a{sv} and how it is read off what is shown; None or "": absent."""

    name: str
    signature: str
    help: str
    read: Callable[[T], object]


def read_fields(fields: Iterable[Field[T]], subject: T) -> Fields:
    found = {field.name: (field.signature, field.read(subject)) for field in fields}
    return {name: (signature, value) for name, (signature, value) in found.items() if value is not None and value != ""}


def _of(fields: tuple[Field[S], ...], get: Callable[[T], S]) -> tuple[Field[T], ...]:
    """The same fields, read off something that contains their subject."""

    def read(field: Field[S]) -> Callable[[T], object]:
        return lambda subject: field.read(get(subject))

    return tuple(Field(field.name, field.signature, field.help, read(field)) for field in fields)


# ---- what is shown ----


class ShownCounts(NamedTuple):
    """Counts since a moment. `submits`: whether the driver's submissions pass an ioctl at least partly."""

    counts: Counts
    since: float
    submits: bool

    def by_kind(self, numbers: tuple[int, ...]) -> dict[str, int]:
        """Zeros too, but not a submit that nobody could have seen."""
        named = zip(KINDS, numbers, strict=True)
        return {kind.label: n for kind, n in named if n or self.submits or kind is not Kind.SUBMIT}


class ShownDevice(NamedTuple):
    """`counts` None: nothing is counted on it now."""

    device: Device
    counts: ShownCounts | None


class ShownUsage(NamedTuple):
    usage: Usage
    counts: ShownCounts


class Workload(NamedTuple):
    """One owner over all devices. `since`: Unix time of its first counted call."""

    owner: Owner
    alive: bool
    devices: tuple[str, ...]
    since: float


def _mechanisms(view: View) -> dict[str, str]:
    return {hook.hook: hook.mechanism for hook in view.hooks}


def _since(view: View) -> int | None:
    return None if view.counting_since is None else int(view.counting_since)


OWNER_FIELDS: tuple[Field[Owner], ...] = (
    Field("Kind", "s", "pod, host (outside pods) or unknown (no runtime has confirmed it)", lambda o: o.kind.value),
    Field("Namespace", "s", "namespace of the pod", lambda o: o.namespace),
    Field("Pod", "s", "name of the pod", lambda o: o.pod),
    Field("Container", "s", "name of the container", lambda o: o.container),
    Field("PodUid", "s", "UID of the pod", lambda o: o.pod_uid),
    Field("ContainerId", "s", "id of the container", lambda o: o.container_id),
    Field("Unit", "s", "systemd unit, plain container or user session, outside pods", lambda o: o.unit),
)
WORKLOAD_FIELDS: tuple[Field[Workload], ...] = (
    *_of(OWNER_FIELDS, lambda workload: workload.owner),
    Field("Alive", "b", "whether one of its cgroups exists", lambda w: w.alive),
    Field("Devices", "as", "addresses of the devices it used", lambda w: list(w.devices)),
    Field("Since", "t", "Unix time of its first counted call, in seconds", lambda w: int(w.since)),
)
COUNT_FIELDS: tuple[Field[ShownCounts], ...] = (
    Field("Calls", "a{st}", "calls by kind, failed ones included", lambda s: s.by_kind(s.counts.calls)),
    Field("Errors", "a{st}", "those that returned an error", lambda s: s.by_kind(s.counts.errors)),
    Field("WaitNs", "t", "time inside calls of kind wait, in nanoseconds", lambda s: s.counts.wait_ns),
    Field("Since", "t", "Unix time since which these are counted, in seconds", lambda s: int(s.since)),
)
# What GetCounters can select by, and the first part of its rows.
FILTER_FIELDS: tuple[Field[Usage], ...] = (
    *_of(OWNER_FIELDS, lambda usage: usage.owner),
    Field("Device", "s", "address of the device", lambda u: u.device),
    Field("Vendor", "s", "its driver table", lambda u: u.vendor),
    Field("Alive", "b", "whether a cgroup of the workload exists", lambda u: u.alive),
)
COUNTER_FIELDS: tuple[Field[ShownUsage], ...] = (
    *_of(FILTER_FIELDS, lambda shown: shown.usage),
    *_of(COUNT_FIELDS, lambda shown: shown.counts),
)
DEVICE_FIELDS: tuple[Field[ShownDevice], ...] = (
    Field("Address", "s", "PCI address, else the name in sysfs", lambda s: s.device.address),
    Field("Driver", "s", "kernel driver", lambda s: s.device.driver),
    Field("Vendor", "s", "driver table that fits it", lambda s: s.device.vendor),
    Field("PciId", "s", "PCI vendor and device", lambda s: s.device.pci_id),
    Field("NumaNode", "u", "NUMA node", lambda s: s.device.numa_node),
    Field(
        "Nodes",
        "a(suu)",
        "device nodes: name below /dev, major, minor",
        lambda s: [(node.name, node.major, node.minor) for node in s.device.nodes],
    ),
    Field(
        "Counters",
        "a{sv}",
        "Calls, Errors, WaitNs, Since, counted independently of who called",
        lambda s: read_fields(COUNT_FIELDS, s.counts) if s.counts else None,
    ),
)
NODE_FIELDS: tuple[Field[View], ...] = (
    Field("Version", "s", "version of the service", lambda view: view.version),
    Field("NodeName", "s", "name of the node", lambda view: view.node),
    Field("Simulated", "b", "whether devices and workloads are made up", lambda view: view.simulated),
    Field("Hooks", "a{ss}", "mechanism of each hook; off: it counts nothing", _mechanisms),
    Field("CountingSince", "t", "Unix time since which calls are counted, in seconds", _since),
)


# ---- the interfaces ----

CONSTANT = {"Version", "NodeName", "Simulated", "Address"}


def _properties(fields: Iterable[Field[T]]) -> tuple[Property, ...]:
    return tuple(Property(field.name, field.signature, field.help, field.name in CONSTANT) for field in fields)


ROWS = Argument("rows", "aa{sv}")
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
