# SPDX-License-Identifier: Apache-2.0
"""What kubenpud tells of its node, declared once: the fields of every row, how each is read off a View, and limits.

The D-Bus and the Varlink interface are made from these tables. Pure: reads values of the model, knows no wire, only how
each spells a type. A field whose value is absent is left out, never sent as 0 or "". Most types are named tuples:
a dataclass costs the daemon five times the memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Generic, NamedTuple, TypeVar

from kubenpu.model.device import Device
from kubenpu.model.identity import Owner
from kubenpu.model.kinds import KINDS, Kind
from kubenpu.model.sample import Counts
from kubenpu.model.usage import UsageRow
from kubenpu.model.view import Usage, View

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocation

MAX_ROWS = 500  # of a page of GetCounters; of a page of GetUsagePage, beside those of devices
MAX_WORKLOADS = 4096  # of a reply of ListWorkloads
MAX_USAGE_GROUPS = 1000  # of a reply of GetUsage

T = TypeVar("T")
S = TypeVar("S")


class Shape(NamedTuple):
    """The type of a field, as D-Bus and as Varlink spell it."""

    signature: str
    varlink: str


TEXT = Shape("s", "string")
TEXTS = Shape("as", "[]string")
TEXT_BY_NAME = Shape("a{ss}", "[string]string")
FLAG = Shape("b", "bool")
SMALL_NUMBER = Shape("u", "int")
NUMBER = Shape("t", "int")
NUMBER_BY_NAME = Shape("a{st}", "[string]int")
AMOUNT_BY_NAME = Shape("a{sx}", "[string]int")
NODES = Shape("a(suu)", "[]DeviceNode")  # tuples of NODE_PARTS
COUNTS = Shape("a{sv}", "Counts")  # a ShownCounts, with the fields of COUNT_FIELDS
NODE_PARTS = (("name", TEXT), ("major", SMALL_NUMBER), ("minor", SMALL_NUMBER))


@dataclass(frozen=True, slots=True)
class Field(Generic[T]):
    """One value of a row and how it is read off what is shown; None or "": absent. `always`: it never is.

    `name` is D-Bus's, `key` Varlink's.
    """

    name: str
    shape: Shape
    help: str
    read: Callable[[T], object]
    always: bool = False

    @property
    def signature(self) -> str:
        return self.shape.signature

    @property
    def key(self) -> str:
        return self.name[0].lower() + self.name[1:]


def read_present(fields: Iterable[Field[T]], subject: T) -> Iterator[tuple[Field[T], object]]:
    """The fields that have a value, with it."""
    for field in fields:
        value = field.read(subject)
        if value is not None and value != "":
            yield field, value


def _of(fields: tuple[Field[S], ...], get: Callable[[T], S]) -> tuple[Field[T], ...]:
    """The same fields, read off something that contains their subject."""

    def read(field: Field[S]) -> Callable[[T], object]:
        return lambda subject: field.read(get(subject))

    return tuple(Field(field.name, field.shape, field.help, read(field), field.always) for field in fields)


# ---- what is shown ----


class ShownCounts(NamedTuple):
    """Counts since a moment. `submits`: whether the driver's submissions pass an ioctl at least partly; `outcomes`:
    whether the ends of calls are seen."""

    counts: Counts
    since: float
    submits: bool
    outcomes: bool

    def by_kind(self, numbers: tuple[int, ...]) -> dict[str, int]:
        """Zeros too, but not a submit that nobody could have seen."""
        named = zip(KINDS, numbers, strict=True)
        return {kind.label: n for kind, n in named if n or self.submits or kind is not Kind.SUBMIT}


class ShownDevice(NamedTuple):
    """`counts` None: nothing is counted on it now."""

    device: Device
    counts: ShownCounts | None


class ShownUsage(NamedTuple):
    """`allocated` None: it is not known."""

    usage: Usage
    counts: ShownCounts
    allocated: bool | None


class Workload(NamedTuple):
    """One owner over all devices. `since`: Unix time of its first counted call."""

    owner: Owner
    alive: bool
    devices: tuple[str, ...]
    since: float


def _mechanisms(view: View) -> dict[str, str]:
    return {hook.hook: hook.mechanism for hook in view.hooks if hook.needed}


def _errors(shown: ShownCounts) -> dict[str, int] | None:
    return shown.by_kind(shown.counts.errors) if shown.outcomes else None


def _wait_ns(shown: ShownCounts) -> int | None:
    return shown.counts.wait_ns if shown.outcomes else None


def _engine_ns(shown: ShownUsage) -> dict[str, int] | None:
    return dict(shown.usage.clients.engine_ns) or None if shown.usage.clients else None


def _memory(shown: ShownUsage) -> dict[str, int] | None:
    return dict(shown.usage.clients.memory) or None if shown.usage.clients else None


def _since(view: View) -> int | None:
    return None if view.counting_since is None else int(view.counting_since)


OWNER_FIELDS: tuple[Field[Owner], ...] = (
    Field(
        "Kind", TEXT, "pod, host (outside pods) or unknown (no runtime has confirmed it)", lambda o: o.kind.value, True
    ),
    Field("Namespace", TEXT, "namespace of the pod", lambda o: o.namespace),
    Field("Pod", TEXT, "name of the pod", lambda o: o.pod),
    Field("Container", TEXT, "name of the container", lambda o: o.container),
    Field("PodUid", TEXT, "UID of the pod", lambda o: o.pod_uid),
    Field("ContainerId", TEXT, "id of the container", lambda o: o.container_id),
    Field("Unit", TEXT, "systemd unit, plain container, job or user session, outside pods", lambda o: o.unit),
    Field(
        "HostKind",
        TEXT,
        "outside pods: container, machine, job, session, unit (of systemd) or other",
        lambda o: o.host_kind.value if o.host_kind else None,
    ),
    Field("Image", TEXT, "image of the container, where its runtime has told", lambda o: o.image),
)
WORKLOAD_FIELDS: tuple[Field[Workload], ...] = (
    *_of(OWNER_FIELDS, lambda workload: workload.owner),
    Field("Alive", FLAG, "whether one of its cgroups exists", lambda w: w.alive, True),
    Field("Devices", TEXTS, "addresses of the devices it used", lambda w: list(w.devices), True),
    Field("Since", NUMBER, "Unix time of its first counted call, in seconds", lambda w: int(w.since), True),
)
COUNT_FIELDS: tuple[Field[ShownCounts], ...] = (
    Field("Calls", NUMBER_BY_NAME, "calls by kind, failed ones included", lambda s: s.by_kind(s.counts.calls), True),
    Field("Errors", NUMBER_BY_NAME, "those that returned an error, where that is seen", _errors),
    Field("WaitNs", NUMBER, "time inside calls of kind wait, in nanoseconds, where that is seen", _wait_ns),
    Field("Since", NUMBER, "Unix time since which these are counted, in seconds", lambda s: int(s.since), True),
)
# What GetCounters can select by, and the first part of its rows.
FILTER_FIELDS: tuple[Field[Usage], ...] = (
    *_of(OWNER_FIELDS, lambda usage: usage.owner),
    Field("Device", TEXT, "address of the device", lambda u: u.device, True),
    Field("Vendor", TEXT, "its driver table", lambda u: u.vendor),
    Field("Alive", FLAG, "whether a cgroup of the workload exists", lambda u: u.alive, True),
)
COUNTER_FIELDS: tuple[Field[ShownUsage], ...] = (
    *_of(FILTER_FIELDS, lambda shown: shown.usage),
    *_of(COUNT_FIELDS, lambda shown: shown.counts),
    Field("EngineNs", NUMBER_BY_NAME, "device time by engine, in nanoseconds, where the driver tells it", _engine_ns),
    Field("MemoryBytes", NUMBER_BY_NAME, "memory that it has now, by region, where the driver tells it", _memory),
    Field("Allocated", FLAG, "whether the kubelet has given it the device; absent: not known", lambda s: s.allocated),
)
ALLOCATION_FIELDS: tuple[Field[Allocation], ...] = (
    Field("Namespace", TEXT, "namespace of the pod", lambda a: a.namespace, True),
    Field("Pod", TEXT, "name of the pod", lambda a: a.pod, True),
    Field("Container", TEXT, "name of the container", lambda a: a.container, True),
    Field("PodUid", TEXT, "UID of the pod", lambda a: a.pod_uid),
    Field("Resource", TEXT, "what the device plugin calls its resource, or the DRA driver", lambda a: a.resource, True),
    Field("DeviceId", TEXT, "id of the device plugin, or pool and device of DRA", lambda a: a.device_id, True),
    Field("Claim", TEXT, "namespace and name of the resource claim, for DRA", lambda a: a.claim),
    Field("Device", TEXT, "address of the device; absent: the id does not tell it", lambda a: a.device),
    Field(
        "IdleSince",
        NUMBER,
        "Unix time since which the container made no call to the device, as far as kubenpud has looked, in seconds",
        lambda a: None if a.idle_since is None else int(a.idle_since),
    ),
)
DEVICE_FIELDS: tuple[Field[ShownDevice], ...] = (
    Field("Address", TEXT, "PCI address, else the name in sysfs", lambda s: s.device.address, True),
    Field("Driver", TEXT, "kernel driver", lambda s: s.device.driver),
    Field("Vendor", TEXT, "driver table that fits it", lambda s: s.device.vendor),
    Field("PciId", TEXT, "PCI vendor and device", lambda s: s.device.pci_id),
    Field("NumaNode", SMALL_NUMBER, "NUMA node", lambda s: s.device.numa_node),
    Field(
        "Nodes",
        NODES,
        "device nodes: name below /dev, major, minor",
        lambda s: [(node.name, node.major, node.minor) for node in s.device.nodes],
        True,
    ),
    Field(
        "Counters",
        COUNTS,
        "calls, errors and time of waiting, counted independently of who called",
        lambda s: s.counts,
    ),
)
USAGE_FIELDS: tuple[Field[UsageRow], ...] = (
    Field(
        "Part", TEXT, "workload, unattributed (what has no name) or device (all of it)", lambda r: r.part.value, True
    ),
    Field("Device", TEXT, "address of the device", lambda r: r.device, True),
    Field("Vendor", TEXT, "its driver table", lambda r: r.vendor),
    Field("Namespace", TEXT, "as far as it was summed up by this", lambda r: r.namespace),
    Field("Pod", TEXT, "likewise", lambda r: r.pod),
    Field("Container", TEXT, "likewise", lambda r: r.container),
    Field("Unit", TEXT, "likewise; outside pods", lambda r: r.unit),
    Field("Label", TEXT, "value of the label; absent: it has none", lambda r: r.label),
    Field("Since", NUMBER, "Unix time that the first stored interval begins, in seconds", lambda r: int(r.since), True),
    Field("Until", NUMBER, "Unix time that the last one ends", lambda r: int(r.until), True),
    Field(
        "Amounts",
        AMOUNT_BY_NAME,
        "by measure; one that is not known is missing; of what is unattributed less than 0: what got its name since",
        lambda r: dict(r.amounts),
        True,
    ),
)
NODE_FIELDS: tuple[Field[View], ...] = (
    Field("Version", TEXT, "version of the service", lambda view: view.version, True),
    Field("NodeName", TEXT, "name of the node", lambda view: view.node, True),
    Field("Simulated", FLAG, "whether devices and workloads are made up", lambda view: view.simulated, True),
    Field("Hooks", TEXT_BY_NAME, "mechanism of each hook; off: it counts nothing", _mechanisms, True),
    Field("CountingSince", NUMBER, "Unix time since which calls are counted, in seconds", _since),
)
