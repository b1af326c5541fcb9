# SPDX-License-Identifier: Apache-2.0
"""Accelerators that do not exist: the module fakeaccel (tests/vm/module), loaded for the length of a block.

Owns the module while it is loaded. Devices are found in sysfs by what they hang under, as minors depend on who came
first. What the module can pretend stands at the top of its source.
"""

from __future__ import annotations

import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.vm.guest import wait

MODULE = "fakeaccel"
CLASSES = (Path("/sys/class/drm"), Path("/sys/class/accel"))
DEV = {"drm": "/dev/dri", "accel": "/dev/accel"}
PCI = ("0000:00:08.0", "0000:00:09.0")  # QEMU's pci-testdevs, see rig.py


@dataclass(frozen=True, slots=True)
class FakeDevice:
    """`driver`: what the uevent of the parent says, "" for none. `nodes`: paths in /dev, in the order of names."""

    address: str
    driver: str
    nodes: tuple[str, ...]


def load(**parameters: Sequence[str]) -> None:
    """Loads the module; parameters are lists as the module takes them. Its nodes are in /dev afterwards."""
    words = [f"{name}={','.join(values)}" for name, values in parameters.items()]
    subprocess.run(["modprobe", "--first-time", MODULE, *words], check=True)
    subprocess.run(["udevadm", "settle"], check=True)


def unload() -> None:
    """Nodes that go make udev call kubenpu-probe, like those that come; it is through afterwards."""
    from tests.vm.guest import service

    subprocess.run(["rmmod", MODULE], check=True)
    subprocess.run(["udevadm", "settle"], check=True)
    wait.until("kubenpu-probe at rest", lambda: not service.probe_has_a_job(), 60)


@contextmanager
def loaded(**parameters: Sequence[str]) -> Iterator[None]:
    load(**parameters)
    try:
        yield
    finally:
        unload()


def set_parameter(name: str, value: int) -> None:
    Path(f"/sys/module/{MODULE}/parameters/{name}").write_text(str(value))


def devices() -> list[FakeDevice]:
    """All DRM and accel devices of this machine but virtio_gpu's and vgem's."""
    nodes: dict[Path, list[str]] = {}
    for directory in CLASSES:
        for entry in sorted(directory.iterdir()) if directory.is_dir() else ():
            if (entry / "dev").exists():
                path = f"{DEV[directory.name]}/{entry.name}"
                nodes.setdefault((entry / "device").resolve(), []).append(path)
    found = [FakeDevice(parent.name, _driver(parent), tuple(paths)) for parent, paths in nodes.items()]
    return [one for one in found if one.address not in ("0000:00:02.0", "vgem")]


def _driver(parent: Path) -> str:
    lines = (parent / "uevent").read_text().splitlines()
    return next((line.removeprefix("DRIVER=") for line in lines if line.startswith("DRIVER=")), "")


def wait_until_known(*addresses: str) -> None:
    """Until kubenpud shows these devices, the kernel counts for them, and kubenpu-probe has done what udev asked for.

    While a program is loaded, calls that kprobes count may be skipped where the kernel preempts (a declared loss).
    """
    from tests.vm.guest import service

    wait.until(f"devices {addresses}", lambda: set(addresses) <= service.devices(), 20)
    nodes = [node for one in devices() if one.address in addresses for node in one.nodes if DEV["drm"] in node]
    wait.until(f"rules for {nodes}", lambda: service.counts(*nodes), 20)
    wait.until("kubenpu-probe at rest", service.probe_is_at_rest)
