# SPDX-License-Identifier: Apache-2.0
"""The guest's DRM devices, found by driver: minor numbers depend on which module came first."""

from __future__ import annotations

import lzma
import subprocess
from dataclasses import dataclass
from pathlib import Path

from tests.vm.guest import wait

CLASS = Path("/sys/class/drm")


@dataclass(frozen=True, slots=True)
class DrmDevice:
    """`address`: the device label of the product (PCI address or sysfs name). `card` and `render`: paths in /dev."""

    address: str
    card: str
    render: str


def find(address: str) -> DrmDevice | None:
    """The device whose parent in sysfs has this name, once both its nodes are in /dev."""
    nodes = {
        node.name.rstrip("0123456789"): f"/dev/dri/{node.name}"
        for node in CLASS.iterdir()
        if (node / "device").exists() and (node / "dev").exists() and (node / "device").resolve().name == address
    }
    if not {"card", "renderD"} <= nodes.keys() or not all(Path(node).exists() for node in nodes.values()):
        return None
    return DrmDevice(address, nodes["card"], nodes["renderD"])


def virtio_gpu() -> DrmDevice:
    return wait.until("the nodes of virtio_gpu", lambda: find("0000:00:02.0"))


def vgem() -> DrmDevice:
    """Loads the module when it is not there."""
    subprocess.run(["modprobe", "vgem"], check=True)
    return wait.until("the nodes of vgem", lambda: find("vgem"))


def bind(address: str, action: str) -> None:
    """`bind` or `unbind` virtio_gpu of this PCI device."""
    (device,) = Path(f"/sys/bus/pci/devices/{address}").glob("virtio*")
    Path(f"/sys/bus/virtio/drivers/virtio_gpu/{action}").write_text(device.name)


def unload(address: str) -> None:
    """Unloads drm and everything on it; `modprobe virtio_gpu` brings it back. Nothing may be hooked or open."""
    for console in Path("/sys/class/vtconsole").iterdir():
        if "frame buffer" in (console / "name").read_text():
            (console / "bind").write_text("0")
    subprocess.run(["modprobe", "-r", "vgem"], check=True)
    if Path("/sys/module/virtio_gpu").exists():
        bind(address, "unbind")
        subprocess.run(["modprobe", "-r", "virtio_gpu"], check=True)
    for _ in range(5):
        names = [line.split()[0] for line in Path("/proc/modules").read_text().splitlines()]
        for name in (n for n in names if n.startswith("drm") or n == "gpu_sched"):
            subprocess.run(["rmmod", name], check=False, capture_output=True)
    assert not Path("/sys/module/drm").exists(), Path("/proc/modules").read_text()


def load_without_btf() -> None:
    """Loads drm from a copy of its file in which the BTF section has another name, so that the kernel finds none."""
    path = Path(_modinfo("-n").strip())
    code = lzma.decompress(path.read_bytes()) if path.suffix == ".xz" else path.read_bytes()
    copy = Path("/run/drm-without-btf.ko")
    copy.write_bytes(_without_signature(code).replace(b"\0.BTF\0", b"\0.XTF\0"))
    for name in filter(None, _modinfo("-F", "depends").strip().split(",")):
        subprocess.run(["modprobe", name], check=True)
    subprocess.run(["insmod", copy], check=True)


def _modinfo(*arguments: str) -> str:
    return subprocess.run(["modinfo", *arguments, "drm"], check=True, capture_output=True, text=True).stdout


def _without_signature(code: bytes) -> bytes:
    """A signature that does not fit is refused; none at all only taints. It ends with its length and a mark."""
    mark = b"~Module signature appended~\n"
    if not code.endswith(mark):
        return code
    body = code[: -len(mark)]
    return body[: -12 - int.from_bytes(body[-4:], "big")]
