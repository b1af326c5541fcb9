# SPDX-License-Identifier: Apache-2.0
"""Accelerators of this node and the ioctl tables of their kernel drivers."""

from __future__ import annotations

import enum
from dataclasses import dataclass

from kubenpu.model.kinds import Kind


class Visibility(enum.Enum):
    """Whether work given to the hardware passes an ioctl: always, partly (user-mode queues exist) or never."""

    ALWAYS = "always"
    PARTLY = "partly"
    NEVER = "never"


@dataclass(frozen=True, slots=True)
class IoctlRule:
    """One ioctl of a driver, matched by type byte and number, never by the whole command (sizes change)."""

    name: str
    nr: int
    kind: Kind


@dataclass(frozen=True, slots=True)
class DriverTable:
    """What is known of one kernel driver. Read from devices/drivers/*.toml and /etc/kubenpu/drivers.d/*.toml.

    `name` is the `vendor` label. `uevent_drivers` are values of DRIVER in the parent's uevent, `sysfs_names` names
    of parent devices that have no driver of their own (vgem). `ioctl_type` is the type byte, 0..255.
    """

    name: str
    subsystem: str
    uevent_drivers: tuple[str, ...]
    sysfs_names: tuple[str, ...]
    ioctl_type: int
    visibility: Visibility
    visibility_note: str
    ioctls: tuple[IoctlRule, ...]
    source: str


@dataclass(frozen=True, slots=True)
class Node:
    """A device node: name below /dev (`dri/renderD128`), major and minor as the kernel counts them."""

    name: str
    major: int
    minor: int

    def __str__(self) -> str:
        return f"{self.major}:{self.minor}"


@dataclass(frozen=True, slots=True)
class Device:
    """One accelerator with all its nodes.

    `address` is the PCI address, else the parent's sysfs name; it is the `device` label and survives reboots.
    `driver` is the kernel driver as the uevent names it (None: no driver is bound to the parent).
    `vendor` is the name of the driver table, None when no table fits. `numa_node` None: unknown.
    """

    address: str
    subsystem: str
    driver: str | None
    vendor: str | None
    pci_id: str | None
    numa_node: int | None
    nodes: tuple[Node, ...]
    sysfs_path: str
