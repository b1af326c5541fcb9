# SPDX-License-Identifier: Apache-2.0
"""The sysfs tree of the simulated node: classes, devices and nodes laid out as the kernel lays them out, and the mark.

The files of a real tree that nothing here reads are left out. Refuses to write into an existing tree.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.fakes.sim_plan import SimDevice, SimNode

SIMULATED_MARK = "kubenpu-simulated"


def write_sysfs(root: Path, devices: Iterable[SimDevice]) -> None:
    """Makes `root` and everything below it."""
    root.mkdir()
    (root / SIMULATED_MARK).write_text("made by tests/fakes/simulated_node.py\n")
    (root / "bus" / "pci").mkdir(parents=True)
    for device in devices:
        _write_device(root, device)


def _write_device(root: Path, device: SimDevice) -> None:
    home = root / "devices" / "pci0000:00" / device.address
    home.mkdir(parents=True)
    _link(home / "subsystem", root / "bus" / "pci")
    (home / "numa_node").write_text(f"{device.numa_node}\n")
    entries = {"DRIVER": device.driver, "PCI_ID": device.pci_id, "PCI_SLOT_NAME": device.address}
    _write_uevent(home, entries)
    for node in device.nodes:
        _write_node(root, home, node)


def _write_node(root: Path, device: Path, node: SimNode) -> None:
    subsystem, directory = ("accel", "accel") if node.name.startswith("accel") else ("drm", "dri")
    home = device / subsystem / node.name
    home.mkdir(parents=True)
    _link(home / "device", device)
    _write_uevent(home, {"MAJOR": str(node.major), "MINOR": str(node.minor), "DEVNAME": f"{directory}/{node.name}"})
    (home / "dev").write_text(f"{node.major}:{node.minor}\n")
    classes = root / "class" / subsystem
    classes.mkdir(parents=True, exist_ok=True)
    _link(classes / node.name, home)


def _write_uevent(home: Path, entries: Mapping[str, str]) -> None:
    (home / "uevent").write_text("".join(f"{key}={value}\n" for key, value in entries.items()))


def _link(link: Path, target: Path) -> None:
    link.symlink_to(os.path.relpath(target, link.parent))
