# SPDX-License-Identifier: Apache-2.0
"""Which device an id means: what plugins and DRA drivers call theirs, what is nobody's, and what could be two."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.ids import find_device
from kubenpu.model.device import Device, Node

INTEL, AMD, NVIDIA, NPU = "0000:00:02.0", "0000:03:00.0", "0000:65:00.0", "fdab0000.npu"
UUID = "GPU-a4f34abc-7715-3560-dcea-7238b9611a45"


def device(address: str, *nodes: str) -> Device:
    return Device(address, "drm", "x", "x", None, None, tuple(Node(name, 226, i) for i, name in enumerate(nodes)), "")


DEVICES = (
    device(INTEL, "dri/card0", "dri/renderD128"),
    device(AMD, "dri/card1", "dri/renderD129"),
    replace(device(NVIDIA, "nvidia0"), uuid=f"GPU-{UUID[4:].lower()}"),
    device(NPU, "accel/accel0"),
)


@pytest.mark.parametrize(
    ("resource", "name", "found"),
    [
        ("amd.com/gpu", "0000:03:00.0", AMD),
        ("amd.com/gpu", "00000000:03:00.0", AMD),
        ("amd.com/gpu", "0000:03:00.0-part-1", AMD),
        ("gpu.intel.com", "0000-00-02-0-0x56a0", INTEL),
        ("gpu.intel.com/i915", "card0-0", INTEL),
        ("gpu.intel.com/i915", "card0-17", INTEL),
        ("vendor.com/gpu", "renderD129", AMD),
        ("npu.vendor.com/accel", "accel0-1", NPU),
        ("nvidia.com/gpu", UUID, NVIDIA),
        ("nvidia.com/gpu", UUID.upper(), NVIDIA),
        ("nvidia.com/gpu", f"{UUID}::3", NVIDIA),
        ("nvidia.com/gpu", f"MIG-{UUID}/7/0", NVIDIA),
        ("nvidia.com/gpu", "nvidia0", NVIDIA),
        ("nvidia.com/gpu", "nvidia0/vgpu3", NVIDIA),
        ("nvidia.com/gpu", "nvidia0/gi1", NVIDIA),
        ("gpu.nvidia.com", "gpu-0", NVIDIA),
        ("gpu.amd.com", "gpu-1-129", AMD),
        # nobody can tell, or it is not here
        ("nvidia.com/gpu", "MIG-9ef3b2f1-2f6e-5b1a-8cdc-2f6f6fd6e6a1", None),
        ("nvidia.com/gpu", "GPU-00000000-7715-3560-dcea-7238b9611a45", None),
        ("other.example", "gpu-0", None),
        ("gpu.nvidia.com", "gpu-1", None),
        ("gpu.amd.com", "gpu-0-129", None),  # a card and a render node of two devices
        ("intel.com/sriov", "0000:5e:02.1", None),
        ("amd.com/gpu", "0001:03:00.0", None),
        ("amd.com/gpu", "10000:03:00.0", None),
        ("x", "card10", None),
        ("x", "discard0", None),
        ("x", "card0-card1", None),
        ("x", "0000:03:00.05", None),
        ("x", "0", None),
        ("x", "", None),
    ],
)
def test_ids(resource: str, name: str, found: str | None) -> None:
    assert find_device(resource, (name,), DEVICES) == found


@pytest.mark.parametrize(
    ("names", "found"),
    [
        (("gpu-7", f"k8s.gpu.nvidia.com/device={UUID}"), None),  # gpu-7 is not here, the other is: they disagree
        (("mine", "vendor.com/gpu=card0", "vendor.com/gpu=0000:00:02.0"), INTEL),
        (("mine", "vendor.com/gpu=card0", "vendor.com/gpu=card1"), None),
        (("gpu-0", "k8s.gpu.nvidia.com/device=gpu-0"), NVIDIA),
        ((), None),
    ],
)
def test_names_of_one_device_have_to_agree(names: tuple[str, ...], found: str | None) -> None:
    assert find_device("gpu.nvidia.com", names, DEVICES) == found


@given(st.text(), st.lists(st.text(alphabet="0123456789abcdefGPUMIcardenvi:-./=", max_size=60), max_size=4))
def test_any_id_means_a_device_that_is_here_or_none(resource: str, names: list[str]) -> None:
    assert find_device(resource, names, DEVICES) in {None, *(each.address for each in DEVICES)}
