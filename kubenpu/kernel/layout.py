# SPDX-License-Identifier: Apache-2.0
"""The structs of the headers in bpf/ as ctypes, and their comparison with the BTF of an object.

Names, offsets and sizes must agree to the byte; a difference is refused before any map is created or read.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping

from kubenpu.model.errors import KernelError

ABI = 1
KINDS = 7
DEVICE_SLOTS = 128
SELFTEST_SLOT = DEVICE_SLOTS - 1
DRM_MAJOR, DRM_MINORS = 226, 1024
ACCEL_MAJOR, ACCEL_MINORS = 261, 256
RULES = DRM_MINORS + ACCEL_MINORS
MAJORS, BLOCKS, BLOCK_MINORS, TABLES, CHAIN = 4096, 32, 1024, 256, 16
ARGUMENTS, VALUES, NO_RESULT, KIND_BITS, WORK_MAX = 256, 64, 255, 3, 65535
RING_NAME = 32
DEVICE_LOSSES = ("slots_full", "no_storage")
NODE_LOSSES = ("device_unknown", "wait_untimed", "exit_missed", "identity", "no_body", "argument_unread")
MEANINGS = ("kind", "slot", "work", "call")

U8, U16, U32, U64 = ctypes.c_uint8, ctypes.c_uint16, ctypes.c_uint32, ctypes.c_uint64


class Rule(ctypes.Structure):
    """knpu_rule"""

    _fields_ = (("slot1", U32), ("first", U32), ("kind", U8 * 256))


class Argument(ctypes.Structure):
    """knpu_argument"""

    _fields_ = (
        ("says", U16),
        ("width", U16),
        ("size", U16),
        ("offset", U16),
        ("length", U16),
        ("pointer", U16),
        ("pad", U32),
        ("mask", U64),
        ("value", U64 * VALUES),
        ("result", U8 * VALUES),
    )


class Cell(ctypes.Structure):
    """knpu_cell"""

    _fields_ = (
        ("owner", U64),
        ("calls", U64 * KINDS),
        ("errors", U64 * KINDS),
        ("wait_ns", U64),
        ("first_ns", U64),
        ("slot1", U32),
        ("pad", U32),
        ("work", U64),
        ("reserved", U64 * 5),
    )


class Totals(ctypes.Structure):
    """knpu_totals"""

    _fields_ = (
        ("calls", U64 * KINDS),
        ("errors", U64 * KINDS),
        ("wait_ns", U64),
        ("lost", U64 * len(DEVICE_LOSSES)),
        ("work", U64),
        ("reserved", U64 * 6),
    )


class Losses(ctypes.Structure):
    """knpu_losses"""

    _fields_ = (("count", U64 * len(NODE_LOSSES)), ("reserved", U64 * 2))


class Cgroup(ctypes.Structure):
    """knpu_cgroup"""

    _fields_ = (
        ("first_ns", U64),
        ("ready", U32),
        ("truncated", U32),
        ("path_len", U32),
        ("level", U32),
        ("path", U8 * 2048),
    )


class Alloc(ctypes.Structure):
    """knpu_alloc"""

    _fields_ = (("hint", U64), ("full", U32), ("pad", U32))


class Slot(ctypes.Structure):
    """knpu_slot"""

    _fields_ = (("since_ns", U64), ("hooks", U32), ("pad", U32), ("address", U8 * 112))


class Journal(ctypes.Structure):
    """knpu_journal"""

    _fields_ = (("valid", U64), ("source_owner", U64), ("source", U32), ("target", U32), ("result", Cell))


class Major(ctypes.Structure):
    """knpu_major"""

    _fields_ = (("block1", U32), ("whole", U32))


class Node(ctypes.Structure):
    """knpu_node"""

    _fields_ = (("slot1", U32), ("table1", U32))


class Table(ctypes.Structure):
    """knpu_table"""

    _fields_ = (("mask", U32), ("value", U32), ("next1", U32), ("first", U32), ("kind", U8 * 256))


class Holder(ctypes.Structure):
    """knpu_holder"""

    _fields_ = (
        ("file", U64),
        ("cgroup_id", U64),
        ("start_ns", U64),
        ("ino", U64),
        ("client_id", U64),
        ("rdev", U32),
        ("tgid", U32),
        ("pid", U32),
        ("fd", U32),
    )


class RingUse(ctypes.Structure):
    """knpu_ring_use"""

    _fields_ = (("client_id", U64), ("ring", U8 * RING_NAME))


class RunningJob(ctypes.Structure):
    """knpu_running_job"""

    _fields_ = (("use", RingUse), ("scheduler", U64), ("start_ns", U64))


_SHARED: dict[str, type[ctypes.Structure]] = {
    "knpu_rule": Rule,
    "knpu_argument": Argument,
    "knpu_cell": Cell,
    "knpu_totals": Totals,
    "knpu_losses": Losses,
    "knpu_cgroup": Cgroup,
    "knpu_alloc": Alloc,
    "knpu_slot": Slot,
    "knpu_journal": Journal,
}
# By stem: what its object holds.
STRUCTS: Mapping[str, Mapping[str, type[ctypes.Structure]]] = {
    "drm_ioctl": _SHARED,
    "file_ioctl": {**_SHARED, "knpu_major": Major, "knpu_node": Node, "knpu_table": Table},
    "clients": {"knpu_holder": Holder},
    "scheduler": {"knpu_ring_use": RingUse, "knpu_running_job": RunningJob},
}


def members_of(struct: type[ctypes.Structure]) -> dict[str, int]:
    """Member name -> offset in bytes."""
    return {str(field[0]): int(getattr(struct, field[0]).offset) for field in struct._fields_}


def differences(found: Mapping[str, tuple[int, Mapping[str, int]] | None], stem: str) -> list[str]:
    """Compares {struct: (size, {member: offset})} read from BTF with STRUCTS; returns one line per difference."""
    lines = []
    for name, struct in STRUCTS[stem].items():
        btf = found.get(name)
        if btf is None:
            lines.append(f"{name}: not in the object's BTF")
            continue
        size, members = btf
        if size != ctypes.sizeof(struct):
            lines.append(f"{name}: {size} bytes in the object, {ctypes.sizeof(struct)} expected")
        if dict(members) != members_of(struct):
            lines.append(f"{name}: members {dict(members)} in the object, {members_of(struct)} expected")
    return lines


def check(found: Mapping[str, tuple[int, Mapping[str, int]] | None], stem: str) -> None:
    """Raises KernelError when the object was made for another program."""
    differing = differences(found, stem)
    if differing:
        raise KernelError(
            "the BPF object does not fit this program:\n  " + "\n  ".join(differing),
            "Install object and program from the same package",
        )


def rule_index(major: int, minor: int) -> int | None:
    """Index of a device node in the map `rules`; None when the node is outside what the map covers."""
    if major == DRM_MAJOR and 0 <= minor < DRM_MINORS:
        return minor
    if major == ACCEL_MAJOR and 0 <= minor < ACCEL_MINORS:
        return DRM_MINORS + minor
    return None
