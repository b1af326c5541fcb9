# SPDX-License-Identifier: Apache-2.0
"""The hooks: which functions they are on and by which mechanisms, best first. One stem in bpf/ each.

Data only. A mechanism attaches one program per side; sides that a kernel does not have are left out.
"""

from __future__ import annotations

from dataclasses import dataclass

UPROBE = "uprobe"
NO_DEVICE = "no such device"

# What every hook's object holds and all share: pinned once. `in_flight` too: a task is inside one driver at a time.
SHARED_MAPS = (
    "rules",
    "arguments",
    "cells",
    "totals",
    "losses",
    "cgroups",
    "announce",
    "in_flight",
    "alloc",
    "slots",
    "journal",
)


@dataclass(frozen=True, slots=True)
class Mechanism:
    """How a hook is attached: the program stems of its sides, in the order in which they must be attached."""

    name: str
    stems: tuple[tuple[str, str], ...]

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(side for side, _ in self.stems)

    def program(self, side: str, part: str) -> str:
        return f"{dict(self.stems)[side]}_{part}"


@dataclass(frozen=True, slots=True)
class Hook:
    """`functions` by side; those of `optional` sides are not in every kernel. `module`: where the functions are, None:
    in the kernel itself. `maps`: those that only this hook's object has. `ladder`: what is tried, in this order."""

    name: str
    functions: tuple[tuple[str, str], ...]
    optional: tuple[str, ...]
    module: str | None
    maps: tuple[str, ...]
    mechanisms: tuple[Mechanism, ...]

    @property
    def sides(self) -> tuple[str, ...]:
        return tuple(side for side, _ in self.functions)

    @property
    def required(self) -> tuple[str, ...]:
        return tuple(side for side in self.sides if side not in self.optional)

    @property
    def ladder(self) -> tuple[str, ...]:
        return tuple(m.name for m in self.mechanisms if m.name != UPROBE)

    def function(self, side: str) -> str:
        return dict(self.functions)[side]

    def mechanism(self, name: str) -> Mechanism:
        return next(m for m in self.mechanisms if m.name == name)


DRM_IOCTL = Hook(
    name="drm_ioctl",
    functions=(("enter", "drm_ioctl"), ("exit", "drm_ioctl")),
    optional=(),
    module="drm",
    maps=(),
    mechanisms=(
        Mechanism("fentry", (("enter", "fentry"), ("exit", "fexit"))),
        Mechanism("kprobe.multi", (("exit", "kretprobe"), ("enter", "kprobe"))),
        Mechanism("kprobe", (("exit", "kretprobe"), ("enter", "kprobe"))),
        Mechanism(UPROBE, (("exit", "uretprobe"), ("enter", "uprobe"))),
    ),
)

# The call for 32-bit programs is apart since 6.8 and stable releases of 6.1 and 6.6 (commit f1bb47a31dff).
FILE_IOCTL = Hook(
    name="file_ioctl",
    functions=(("enter", "security_file_ioctl"), ("compat", "security_file_ioctl_compat")),
    optional=("compat",),
    module=None,
    maps=("majors", "nodes", "tables"),
    mechanisms=(
        Mechanism("lsm", (("compat", "lsm_compat"), ("enter", "lsm"))),
        Mechanism("fentry", (("compat", "fentry_compat"), ("enter", "fentry"))),
        Mechanism("kprobe.multi", (("compat", "kprobe_compat"), ("enter", "kprobe"))),
        Mechanism("kprobe", (("compat", "kprobe_compat"), ("enter", "kprobe"))),
        Mechanism(UPROBE, (("enter", "uprobe"),)),
    ),
)

HOOKS = (DRM_IOCTL, FILE_IOCTL)
MECHANISM_NAMES = tuple(dict.fromkeys(name for hook in reversed(HOOKS) for name in hook.ladder))
