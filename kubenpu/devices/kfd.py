# SPDX-License-Identifier: Apache-2.0
"""Which GPU a call on /dev/kfd means: the ids that AMD's compute driver gives GPUs and partitions of Instinct GPUs.

Reads the topology below /sys/class/kfd, where a CPU has the id 0. A topology node and a device are one when they have
the same render node. Not by location_id: it has the number of the partition in it, in other bits on other kernels.

The kernel shows a node only to those whose device cgroup lets them use its render node, whatever their user id; hence
DeviceAllow=char-drm in the units.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kubenpu.devices.sysfs import numbered, read_text
from kubenpu.model.device import Device

TOPOLOGY = "class/kfd/kfd/topology/nodes"
_DRM_MAJOR = 226
_NUMBER = re.compile(r"[0-9]{1,10}")
_GPU_IDS = range(1, 1 << 32)
_DOMAINS = range(1 << 32)


@dataclass(frozen=True, slots=True)
class KfdGpu:
    """`places`: PCI addresses at one of which it is."""

    gpu_id: int
    render_minor: int
    places: frozenset[str]


def read_gpus(sysfs: Path, problems: list[str]) -> tuple[KfdGpu, ...]:
    """All GPUs of the topology; `problems` gets what could not be read."""
    found = []
    for number, place in numbered(sysfs / TOPOLOGY):
        gpu_id, properties = read_text(place / "gpu_id").strip(), read_text(place / "properties")
        if gpu_id == "0":
            continue
        gpu = _parse_gpu(gpu_id, properties)
        if gpu is None:
            problems.append(f"node {number} of KFD's topology cannot be read: calls on /dev/kfd do not tell its GPU")
        else:
            found.append(gpu)
    return tuple(found)


def _parse_gpu(gpu_id: str, properties: str) -> KfdGpu | None:
    pairs = (line.partition(" ") for line in properties.split("\n"))
    values = {key: int(value) for key, _, value in pairs if _NUMBER.fullmatch(value)}
    minor, domain, location = (values.get(key, -1) for key in ("drm_render_minor", "domain", "location_id"))
    if not _NUMBER.fullmatch(gpu_id) or int(gpu_id) not in _GPU_IDS or minor < 0:
        return None
    return KfdGpu(int(gpu_id), minor, frozenset(_places(domain, location)) if domain in _DOMAINS else frozenset())


def _places(domain: int, location: int) -> Iterator[str]:
    """As it stands, and without the number of a partition."""
    bus, slot = location >> 8 & 0xFF, location >> 3 & 0x1F
    for function in (location & 7, 0) if location >= 0 else ():
        yield f"{domain:04x}:{bus:02x}:{slot:02x}.{function}"


def describe(devices: Iterable[Device], gpus: Iterable[KfdGpu]) -> Iterator[Device]:
    """The devices, with the ids of those that KFD has."""
    devices = tuple(devices)
    by_minor = {gpu.render_minor: gpu for gpu in gpus}
    on_pci = {device.address for device in devices if device.pci_id is not None}
    for device in devices:
        gpu = _find(device, by_minor)
        if gpu is None:
            yield device
            continue
        owners = gpu.places & on_pci if device.pci_id is None else frozenset()
        yield replace(device, kfd_gpu_id=gpu.gpu_id, partition_of=next(iter(owners)) if len(owners) == 1 else None)


def _find(device: Device, by_minor: Mapping[int, KfdGpu]) -> KfdGpu | None:
    minors = (node.minor for node in device.nodes if node.major == _DRM_MAJOR)
    return next((by_minor[minor] for minor in minors if minor in by_minor), None)
