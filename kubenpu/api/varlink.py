# SPDX-License-Identifier: Apache-2.0
"""The Varlink interface, declared once: methods, types, errors; its fields are those of fields.py.

The interface definition that clients introspect, the checks of what they send and the documents are made from it. Pure:
knows no wire.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple, TypeVar

from kubenpu.api.fields import (
    ALLOCATION_FIELDS,
    COUNT_FIELDS,
    COUNTER_FIELDS,
    DEVICE_FIELDS,
    FILTER_FIELDS,
    MAX_ROWS,
    NODE_FIELDS,
    NODE_PARTS,
    WORKLOAD_FIELDS,
    Field,
)

NAME = "io.kubenpu.Node"
VENDOR, PRODUCT = "KubeNPU", "kubenpud"
FAILED = NAME + ".Failed"
TOO_MANY_WORKLOADS = NAME + ".TooManyWorkloads"
EXPECTED_MORE = "org.varlink.service.ExpectedMore"  # the library has no class for it
MAX_CALL_BYTES = 64 * 1024
MAX_CONNECTIONS = 128
CALL_S = 60.0  # for a call to come, idle or in pieces
TAKE_S = 10.0  # for a reply to be taken
PATIENCE_S = 1.0  # the same while others wait
SHORTEST_INTERVAL_S, LONGEST_INTERVAL_S = 1, 3600

T = TypeVar("T")


class Part(NamedTuple):
    """A field of a structure; a type that begins with ? may be absent."""

    key: str
    type: str
    help: str = ""


class Struct(NamedTuple):
    name: str
    parts: tuple[Part, ...]
    help: str


class Method(NamedTuple):
    """`more`: it answers again and again, and only to who asks for that."""

    name: str
    takes: tuple[Part, ...]
    gives: tuple[Part, ...]
    help: str
    more: bool = False


class Error(NamedTuple):
    name: str
    parts: tuple[Part, ...]
    help: str


def _parts(fields: Iterable[Field[T]], all_absent: bool = False) -> tuple[Part, ...]:
    return tuple(
        Part(field.key, ("?" if all_absent or not field.always else "") + field.shape.varlink, field.help)
        for field in fields
    )


TYPES = (
    Struct("DeviceNode", tuple(Part(key, shape.varlink) for key, shape in NODE_PARTS), "a node below /dev"),
    Struct("Counts", _parts(COUNT_FIELDS), "calls of one device, counted independently of who made them"),
    Struct("Device", _parts(DEVICE_FIELDS), "an accelerator"),
    Struct("Workload", _parts(WORKLOAD_FIELDS), "a pod, unit or unnamed workload that used one"),
    Struct("Allocation", _parts(ALLOCATION_FIELDS), "a device that the kubelet has given to a container"),
    Struct("Filter", _parts(FILTER_FIELDS, all_absent=True), "what is given has to be equal"),
    Struct("Counter", _parts(COUNTER_FIELDS), "the calls of one workload on one device"),
)
FILTER = Part("filter", "?Filter", "absent: all rows")
COUNTERS = Part("counters", "[]Counter")
METHODS = (
    Method("GetInfo", (), _parts(NODE_FIELDS), "the node and its service"),
    Method("ListDevices", (), (Part("devices", "[]Device"),), "accelerators"),
    Method("ListWorkloads", (), (Part("workloads", "[]Workload"),), "pods, units and unnamed workloads that used one"),
    Method(
        "GetCounters",
        (
            FILTER,
            Part("offset", "?int", "rows to leave out"),
            Part("limit", "?int", f"rows of the page, at most {MAX_ROWS}; 0 or absent means that"),
        ),
        (COUNTERS, Part("total", "int", "rows that the filter selects")),
        "a page of counts, one row per workload and device",
    ),
    Method(
        "ListAllocations",
        (),
        (Part("allocations", "[]Allocation"),),
        "devices that the kubelet has given to containers; Failed where it does not tell",
    ),
    Method(
        "Watch",
        (FILTER, Part("intervalSeconds", "?int", f"{SHORTEST_INTERVAL_S} to {LONGEST_INTERVAL_S}; absent: 1")),
        (
            Part("timeUsec", "int", "Unix time of the counts, in microseconds"),
            COUNTERS,
            Part("remaining", "int", "changed rows that the next reply brings at once"),
        ),
        "all rows, then every interval those that have changed; needs more",
        more=True,
    ),
)
ERRORS = (
    Error("TooManyWorkloads", (Part("limit", "int"),), "more than fit into a reply: page with GetCounters"),
    Error("Failed", (Part("reason", "string"),), "what was asked for cannot be had now"),
)


def render_idl() -> str:
    """The interface definition."""
    lines = ["# Accelerators of this node, who uses them, and how much. Everybody may read.", f"interface {NAME}", ""]
    for struct in TYPES:
        lines += [f"# {struct.help}", f"type {struct.name} {_block(struct.parts)}", ""]
    for method in METHODS:
        lines += [f"# {method.help}", f"method {method.name}{_block(method.takes)} -> {_block(method.gives)}", ""]
    for error in ERRORS:
        lines += [f"# {error.help}", f"error {error.name} {_block(error.parts)}", ""]
    return "\n".join(lines)


def _block(parts: tuple[Part, ...]) -> str:
    if not parts:
        return "()"
    lines = []
    for part in parts:
        lines += [f"  # {part.help}"] if part.help else []
        lines += [f"  {part.key}: {part.type}{'' if part is parts[-1] else ','}"]
    return "\n".join(["(", *lines, ")"])
