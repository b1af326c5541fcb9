# SPDX-License-Identifier: Apache-2.0
"""Which device is meant by the id that a device plugin or a DRA driver gave it.

Ids are whatever their authors chose. Those that hold a PCI address, the name of a device node or the UUID of an NVIDIA
GPU tell which device it is; of others, and of ids that name two, nothing is guessed. NVIDIA's driver does not tell the
UUIDs of MIG instances.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence

from kubenpu.model.device import Device

# 0000:03:00.0, in names that must be a label of DNS 0000-03-00-0
_PCI = re.compile(r"(?<![0-9a-z])([0-9a-f]{4,8})[:-]([0-9a-f]{2})[:-]([0-9a-f]{2})[.-]([0-7])(?![0-9a-z])", re.I)
_UUID = re.compile(r"GPU-[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.I)
_NODE = re.compile(r"(?<![0-9a-z])(?:card|renderD|accel|nvidia)[0-9]{1,7}(?![0-9a-z])")
# What DRA drivers call a device by the numbers of its nodes: driver, device, nodes.
_NUMBERED = (
    ("gpu.nvidia.com", re.compile(r"gpu-([0-9]{1,4})"), ("nvidia{}",)),
    ("gpu.amd.com", re.compile(r"gpu-([0-9]{1,4})-([0-9]{1,4})"), ("card{}", "renderD{}")),
)


def find_device(resource: str, names: Iterable[str], devices: Sequence[Device]) -> str | None:
    """The address of the one device that all these names of it mean."""
    addresses = {device.address for device in devices}
    by_node = {node.name.rpartition("/")[2]: device.address for device in devices for node in device.nodes}
    uuids = {device.uuid: device.address for device in devices if device.uuid is not None}
    found = {each for name in names for each in _meanings(resource, name, by_node, uuids)}
    return found.pop() if len(found) == 1 and found <= addresses else None


def _meanings(resource: str, name: str, by_node: Mapping[str, str], uuids: Mapping[str, str]) -> Iterator[str | None]:
    """None: of a node or a GPU that is not here."""
    for parts in _PCI.findall(name):
        domain, bus, slot, function = (part.lower() for part in parts)
        yield f"{domain[-4:] if not domain[:-4].strip('0') else domain}:{bus}:{slot}.{function}"
    for uuid in _UUID.findall(name):
        yield uuids.get(f"GPU-{uuid[4:].lower()}")
    for node in _NODE.findall(name):
        yield by_node.get(node)
    for driver, pattern, nodes in _NUMBERED:
        match = pattern.fullmatch(name.rpartition("=")[2]) if driver == resource else None
        if match:
            for node, number in zip(nodes, match.groups(), strict=True):
                yield by_node.get(node.format(number))
