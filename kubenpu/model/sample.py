# SPDX-License-Identifier: Apache-2.0
"""What the kernel counted, decoded from the pinned maps. All times are CLOCK_BOOTTIME nanoseconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from kubenpu.model.clients import ClientUse
from kubenpu.model.device import Argument


@dataclass(frozen=True, slots=True)
class Counts:
    """Totals since `first_ns`. `calls` and `errors` have one entry per Kind; errors are part of calls.

    `wait_ns` is the time spent inside calls of kind WAIT; `work` what submissions handed over that say how much.
    """

    calls: tuple[int, ...]
    errors: tuple[int, ...]
    wait_ns: int
    work: int = 0

    def __add__(self, other: Counts) -> Counts:
        return Counts(
            tuple(map(int.__add__, self.calls, other.calls)),
            tuple(map(int.__add__, self.errors, other.errors)),
            self.wait_ns + other.wait_ns,
            self.work + other.work,
        )

    def at_least(self, other: Counts) -> Counts:
        """The larger of each two numbers."""
        return Counts(
            tuple(map(max, self.calls, other.calls)),
            tuple(map(max, self.errors, other.errors)),
            max(self.wait_ns, other.wait_ns),
            max(self.work, other.work),
        )


ZERO = Counts((0,) * 7, (0,) * 7, 0)


@dataclass(frozen=True, slots=True)
class Cell:
    """One used slot of the counter array: the totals of one cgroup on one device.

    `device` is the device slot (index of the pinned device table). `cgroup_id` 0: the departed total of that device,
    where cells of retired workloads were added.
    """

    index: int
    cgroup_id: int
    device: int
    first_ns: int
    counts: Counts


@dataclass(frozen=True, slots=True)
class CgroupRecord:
    """A cgroup as the kernel named it at its first call. `path` is relative to the cgroup2 mount and begins with `/`.

    Bytes that are not UTF-8 are kept as surrogate escapes. `truncated`: the tree is deeper than was recorded.
    """

    cgroup_id: int
    path: str
    truncated: bool
    first_ns: int


@dataclass(frozen=True, slots=True)
class DeviceTotals:
    """Independent per-device totals, and the calls of that device that no cell could take, by reason."""

    device: int
    counts: Counts
    lost: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class KernelSample:
    """One reading. `before` and `after` bracket `cells`: sums over cells + lost must lie between them.

    `losses` are events lost that belong to no known device, by reason. `slots_used`/`slots_max`: counter cells.
    `generation`: another number for every set of maps of this boot. `clients`: what kubenpu-clients adds up.
    """

    taken_ns: int
    cells: tuple[Cell, ...]
    cgroups: Mapping[int, CgroupRecord]
    before: Mapping[int, DeviceTotals]
    after: Mapping[int, DeviceTotals]
    losses: Mapping[str, int]
    slots_used: int
    slots_max: int
    generation: int = 0
    clients: tuple[ClientUse, ...] = ()
    client_generation: int = 0

    def cgroup_ids(self) -> set[int]:
        """Cgroups that have something in their name; 0 marks what belongs to none any more."""
        found = {cell.cgroup_id for cell in self.cells} | {use.cgroup_id for use in self.clients}
        return found - {0}


# The hook that sees what becomes of a call. Of a device that another one counts for, errors and waits are not known.
HOOK_WITH_OUTCOME = "drm_ioctl"
OFF = "off"  # the mechanism of a hook that counts nothing


@dataclass(frozen=True, slots=True)
class HookStatus:
    """State of one hook. `mechanism`: lsm, fentry, kprobe.multi, kprobe, uprobe or off; `reason` says why not better.

    `needed` false: it is off because there is no device whose calls it would see. `loader`: core, by the kernel's BTF,
    or bcc, without.
    """

    hook: str
    mechanism: str
    reason: str
    since_ns: int
    needed: bool = True
    loader: str = "core"


@dataclass(frozen=True, slots=True)
class CellMerge:
    """Add cell `source` to cell `target` (same device) and free `source`. Both are cell indexes.

    Index d < the number of device slots is the departed total of device slot d.
    """

    source: int
    target: int


@dataclass(frozen=True, slots=True)
class DeviceRule:
    """What the kernel does with ioctls on one device node: count for `slot`; `kinds[nr]` is the Kind, 256 bytes.

    `arguments[nr]` is where the argument of a call has more to say.
    """

    major: int
    minor: int
    slot: int
    kinds: bytes
    arguments: Mapping[int, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class CommandTable:
    """Kinds of the commands whose upper 24 bits equal `value` under `mask`, by their low byte: 256 bytes.

    `arguments`, by the same byte, say where the argument of a call has more to say.
    """

    mask: int
    value: int
    kinds: bytes
    arguments: Mapping[int, Argument] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class NodeRule:
    """What file_ioctl does with ioctls on a character device: count for `slot`; without one, when none was left for the
    device, declare them lost. `early`: a node of drm or accel, whose other calls drm_ioctl counts.

    The first of `tables` that knows a command tells its kind; none: other. `whole`: every minor of this major is an
    accelerator, so that a call on one without a rule is a loss. `gpus`: the slots of GPUs by what calls name them by.
    """

    major: int
    minor: int
    slot: int | None
    tables: tuple[CommandTable, ...]
    whole: bool
    gpus: Mapping[int, int] = field(default_factory=dict)
    early: bool = False
