# SPDX-License-Identifier: Apache-2.0
"""Accelerators of this node and the ioctl tables of their kernel drivers."""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from kubenpu.model.kinds import Kind


class Visibility(enum.Enum):
    """Whether something is seen: always, partly (some of it, or on some kernels or devices) or never; none: there is
    nothing to see."""

    ALWAYS = "always"
    PARTLY = "partly"
    NEVER = "never"
    NONE = "none"


SHOWN = frozenset({Visibility.ALWAYS, Visibility.PARTLY})

# What a driver lets one see: by calls, work handed to the hardware, its memory, waiting for it; and what it tells
# itself of the time and the memory of its clients.
WHATS_OF_CALLS = ("submit", "memory", "wait")
WHATS = (*WHATS_OF_CALLS, "device_time", "device_memory")
VisibilityOf = Callable[[str | None], Mapping[str, Visibility]]
"""By the name of a driver table; empty for None and where nobody has said."""


@dataclass(frozen=True, slots=True)
class Field:
    """A number inside the argument of a call: `width` bytes at `offset`, in the byte order of the machine.

    `size` is the smallest argument the call has in any release; the field lies inside it. It is to be read when the
    call begins, because drivers write their answer over it.
    """

    size: int
    offset: int
    width: int


@dataclass(frozen=True, slots=True)
class KindField(Field):
    """Decides the kind: that of `value & mask`, and the rule's own for a value that is not listed."""

    mask: int
    kinds: Mapping[int, Kind]


@dataclass(frozen=True, slots=True)
class CountField(Field):
    """How much work one call hands over, in the unit of its table."""


@dataclass(frozen=True, slots=True)
class GpuField(Field):
    """Which device of a node that stands for several; `key` says what the number is."""

    key: str


@dataclass(frozen=True, slots=True)
class Envelope(Field):
    """Another call of the same type byte: its nr, its size (4 bytes at `length`), its argument (8 at `pointer`)."""

    length: int
    pointer: int


Argument = KindField | CountField | GpuField | Envelope


@dataclass(frozen=True, slots=True)
class IoctlRule:
    """One ioctl of a driver, matched by type byte and number (sizes change), or by `cmd` as a whole where it is set.

    `early`: the driver of a DRM device answers it by its number before drm_ioctl, so the hook file_ioctl counts it.
    """

    name: str
    nr: int
    kind: Kind
    type: int
    cmd: int | None = None
    argument: Argument | None = None
    early: bool = False


@dataclass(frozen=True, slots=True)
class Release:
    """Calls of the releases `first` to `last` of a module whose numbers differ between releases."""

    module: str
    first: tuple[int, ...]
    last: tuple[int, ...]
    ioctls: tuple[IoctlRule, ...]


@dataclass(frozen=True, slots=True)
class NodeMatch:
    """Device nodes of a driver. `devname` is a pattern of the name below /dev, empty for files without a node.

    One of these says where the number is found: `sysfs_class` in sysfs; `chrdev` a name in /proc/devices; `major`
    fixed; `anonymous` files without number, by the name of their inode; none of them: any class of sysfs.
    `minors` is first and last. `shared`: other minors of their major are no accelerators.
    """

    devname: str
    sysfs_class: str | None = None
    chrdev: str | None = None
    major: int | None = None
    minors: tuple[int, int] | None = None
    anonymous: str | None = None
    shared: bool = False


@dataclass(frozen=True, slots=True)
class Interface:
    """One kind of device node of a driver and the calls on it.

    `subsystem` drm or accel: nodes of these classes, calls pass drm_ioctl. char: other nodes, given by `nodes`.
    `uevent_drivers` are values of DRIVER in the parent's uevent, `sysfs_names` names of parent devices that have no
    driver of their own (vgem), `drm_names` what the driver calls itself in fdinfo and DRM_IOCTL_VERSION.
    `ioctls` hold for releases that none of `releases` covers.
    """

    subsystem: str
    uevent_drivers: tuple[str, ...]
    sysfs_names: tuple[str, ...]
    drm_names: tuple[str, ...]
    nodes: tuple[NodeMatch, ...]
    ioctls: tuple[IoctlRule, ...]
    releases: tuple[Release, ...]


@dataclass(frozen=True, slots=True)
class DriverTable:
    """What is known of one kernel driver. Read from devices/drivers/*.toml and /etc/kubenpu/drivers.d/*.toml.

    `name` is the `vendor` label. `auxiliary`: which of its nodes are no accelerator of their own, because they stand
    for all of them or for none; names as in NodeMatch.devname, or * for all. `visibility` has some of WHATS; what is
    not in it nobody has said. `work`: in what its submissions say how much they hand over, None: none of them says.
    `scheduled`: the drivers of devices whose jobs the kernel's GPU scheduler hands out, one at a time on a ring: by
    its events device time is known, not by fdinfo.
    `unknown_release`: what is loaded where the table tells releases apart and has none such: its calls are not known.
    """

    name: str
    hardware: str
    interfaces: tuple[Interface, ...]
    visibility: Mapping[str, Visibility]
    visibility_note: str
    source: str
    work: str | None = None
    scheduled: tuple[str, ...] = ()
    auxiliary: tuple[str, ...] = ()
    unknown_release: str = ""

    def interface(self, subsystem: str) -> Interface | None:
        """Its first interface of a subsystem; drivers have no two of drm or accel."""
        return next((each for each in self.interfaces if each.subsystem == subsystem), None)


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: name below /dev (`dri/renderD128`), major and minor as the kernel counts them."""

    name: str
    major: int
    minor: int

    @property
    def in_drm(self) -> bool:
        """Whether its calls pass drm_ioctl: a node of DRM or accel."""
        return self.major in (226, 261)

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True, slots=True)
class MigInstance:
    """A part of an NVIDIA GPU: a GPU instance, or a compute instance in it.

    Who may open `node` may use it. Its calls are made on the node of the GPU, so they do not tell instances apart.
    """

    gpu_instance: int
    compute_instance: int | None
    node: Node


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator with all its nodes.

    `address` is the PCI address, else the parent's sysfs name; it is the `device` label and survives reboots.
    `driver` is the kernel driver as the uevent names it (None: no driver is bound to the parent).
    `vendor` is the name of the driver table, None when no table fits. `numa_node` None: unknown.
    `uuid` and `model` as NVIDIA's driver tells them. `kfd_gpu_id` is what calls on /dev/kfd name it by.
    `partition_of` is the address of the PCI device that an Instinct partition is a part of.
    `auxiliary`: it stands for several accelerators or for none. Its calls are counted; it has no time that is charged.
    """

    address: str
    subsystem: str
    driver: str | None
    vendor: str | None
    pci_id: str | None
    numa_node: int | None
    nodes: tuple[Node, ...]
    sysfs_path: str
    uuid: str | None = None
    model: str | None = None
    kfd_gpu_id: int | None = None
    partition_of: str | None = None
    instances: tuple[MigInstance, ...] = ()
    auxiliary: bool = False
