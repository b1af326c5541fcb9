# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's driver tells of its GPUs in procfs: which minor is which PCI device, UUIDs, models, MIG instances.

It makes no entry in sysfs for them. Reads files below /proc/driver/nvidia, and opens no capability: who opens one holds
the instance. Refuses what has not the form that the driver writes; a UUID that it does not know yet has question marks.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from kubenpu.devices.sysfs import numbered, read_text
from kubenpu.model.device import Device, MigInstance, Node

GPUS = "driver/nvidia/gpus"
CAPABILITIES = "driver/nvidia/capabilities"
CAPABILITY_CHRDEV = "nvidia-caps"
_GPU_MINOR = re.compile(r"[0-9]{1,3}")
_MINOR = re.compile(r"DeviceFileMinor:[ \t]*([0-9]{1,6})$", re.M)
_UUID = re.compile(r"GPU-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
_MODEL = re.compile(r"[ -~]{1,80}")


@dataclass(frozen=True, slots=True)
class NvidiaGpu:
    """One GPU by its PCI address; None is what the driver does not tell."""

    address: str
    minor: int | None
    uuid: str | None
    model: str | None


def read_gpus(procfs: Path) -> tuple[NvidiaGpu, ...]:
    """All GPUs that the driver has; none when it is not loaded."""
    try:
        directories = sorted((procfs / GPUS).iterdir())
    except OSError:
        return ()
    return tuple(_parse_gpu(each.name, read_text(each / "information")) for each in directories)


def _parse_gpu(address: str, text: str) -> NvidiaGpu:
    lines = (line.partition(":") for line in text.split("\n"))
    values = {key: value.strip() for key, _, value in lines}
    minor = _valid(values, "Device Minor", _GPU_MINOR)
    uuid, model = _valid(values, "GPU UUID", _UUID), _valid(values, "Model", _MODEL)
    return NvidiaGpu(address, None if minor is None else int(minor), uuid, model)


def _valid(values: Mapping[str, str], key: str, pattern: re.Pattern[str]) -> str | None:
    value = values.get(key, "")
    return value if pattern.fullmatch(value) else None


def describe(
    devices: Iterable[Device], gpus: Iterable[NvidiaGpu], procfs: Path, majors: Mapping[str, int]
) -> Iterator[Device]:
    """The devices, with what is known of those that are GPUs of NVIDIA. `majors` as in /proc/devices."""
    by_address = {gpu.address: gpu for gpu in gpus}
    major = majors.get(CAPABILITY_CHRDEV)
    for device in devices:
        gpu = by_address.get(device.address)
        if gpu is None:
            yield device
            continue
        instances = tuple(_read_instances(procfs, gpu.minor, major))
        yield replace(device, uuid=gpu.uuid, model=gpu.model, instances=instances)


def _read_instances(procfs: Path, gpu_minor: int | None, major: int | None) -> Iterator[MigInstance]:
    """What stands in procfs exists; the list mig-minors beside it has all that could."""
    if gpu_minor is None or major is None:
        return
    for gpu_instance, place in numbered(procfs / CAPABILITIES / f"gpu{gpu_minor}/mig", "gi"):
        for compute_instance, inner in [(None, place), *numbered(place, "ci")]:
            found = _MINOR.search(read_text(inner / "access"))
            if found:
                node = Node(f"nvidia-caps/nvidia-cap{found[1]}", major, int(found[1]))
                yield MigInstance(gpu_instance, compute_instance, node)
