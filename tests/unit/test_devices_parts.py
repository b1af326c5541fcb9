# SPDX-License-Identifier: Apache-2.0
"""What procfs and KFD's topology tell of a GPU: UUIDs, models, MIG instances, ids of /dev/kfd, Instinct partitions."""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.cli import main
from kubenpu.devices import kfd
from kubenpu.devices.discovery import discover
from kubenpu.devices.sysfs import read_text
from kubenpu.model.device import Device, MigInstance, Node
from tests.unit.test_chardevs import DEVICES, GPU, TABLES, TPU, Machine

UUID = "GPU-5d5ba0d6-d33d-2b2c-524d-9e3d8d2b8a77"
# As the driver lays it out: blanks and tabs behind the colon, a line GPU UUID only once it is known.
INFORMATION = (
    f"Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 133\nGPU UUID: \t {UUID}\nVideo BIOS: \t 96.00.61.00.01\n"
    "Bus Type: \t PCIe\nDMA Size: \t 52 bits\nDMA Mask: \t 0xfffffffffffff\nBus Location: \t 0000:01:00.0\n"
    "Device Minor: \t 3\nGPU Firmware: \t 595.45.04\nGPU Excluded:\t No\n"
)
CAPABILITIES = DEVICES.replace("\nBlock", "238 nvidia-caps\n\nBlock", 1).replace("\n\n238", "\n238")
INSTINCT, OTHER = "0000:c1:00.0", "0001:02:00.0"


class Parts(Machine):
    """A machine with GPUs that have parts."""

    def information(self, text: str, address: str = GPU) -> None:
        home = self.procfs / "driver/nvidia/gpus" / address
        home.mkdir(parents=True, exist_ok=True)
        (home / "information").write_text(text)
        (self.procfs / "devices").write_text(CAPABILITIES)

    def capability(self, path: str, minor: str, gpu: int = 3) -> None:
        home = self.procfs / f"driver/nvidia/capabilities/gpu{gpu}/mig" / path
        home.mkdir(parents=True, exist_ok=True)
        (home / "access").write_text(f"DeviceFileMinor: {minor}\nDeviceFileMode: 292\nDeviceFileModify: 1\n")

    def instinct(self, address: str, card: int, *partitions: int) -> None:
        """One PCI device with its nodes, and partitions with minors after them."""
        home = self.pci(address, "amdgpu", "120000", "1002:74A1")
        for minor, name in ((card, f"card{card}"), (card + 128, f"renderD{card + 128}")):
            self.node(name, f"226:{minor}", "drm", home, f"dri/{name}")
        for number in partitions:
            parent = self.sysfs / f"devices/platform/amdgpu_xcp_{number}"
            parent.mkdir(parents=True)
            (parent / "uevent").write_text(f"MODALIAS=platform:amdgpu_xcp_{number}\n")
            self.node(f"renderD{200 + number}", f"226:{200 + number}", "drm", parent, f"dri/renderD{200 + number}")

    def kfd_node(self, number: int, gpu_id: int | str, **properties: int) -> Path:
        home = self.sysfs / f"class/kfd/kfd/topology/nodes/{number}"
        home.mkdir(parents=True)
        (home / "gpu_id").write_text(f"{gpu_id}\n")
        lines = {"cpu_cores_count": 0, **properties, "unique_id": (1 << 64) - 1}
        (home / "properties").write_text("".join(f"{key} {value}\n" for key, value in lines.items()))
        return home

    def problems(self) -> tuple[str, ...]:
        return discover(self.sysfs, TABLES).problems


@pytest.fixture
def machine(tmp_path: Path) -> Parts:
    return Parts(tmp_path)


# ---- NVIDIA ----


def test_a_gpu_of_nvidia_has_the_minor_the_uuid_and_the_model_that_the_driver_tells(machine: Parts) -> None:
    machine.pci(GPU, "nvidia")
    machine.information(INFORMATION)
    gpu = machine.devices()[GPU]
    assert [f"{node.name} {node}" for node in gpu.nodes] == ["nvidia3 195:3"]
    assert (gpu.uuid, gpu.model, gpu.instances) == (UUID, "NVIDIA H100 80GB HBM3", ())
    assert machine.devices()["nvidiactl"].uuid is None


@pytest.mark.parametrize(
    ("line", "uuid"),
    [
        ("", None),
        ("GPU UUID: \t GPU-????????-????-????-????-????????????\n", None),
        (f"GPU UUID: \t {UUID}x\n", None),
        (f"GPU UUID: \t {UUID[:-1]}\x1b\n", None),
        (f"GPU UUID:{UUID}\n", UUID),
    ],
)
def test_a_uuid_that_is_none(machine: Parts, line: str, uuid: str | None) -> None:
    machine.pci(GPU, "nvidia")
    machine.information(INFORMATION.replace(f"GPU UUID: \t {UUID}\n", line))
    gpu = machine.devices()[GPU]
    assert (gpu.uuid, len(gpu.nodes)) == (uuid, 1)


def test_a_gpu_without_a_minor_keeps_what_is_known(machine: Parts) -> None:
    home = machine.pci(GPU, "nvidia")
    machine.node("card1", "226:1", "drm", home, "dri/card1")
    machine.information(INFORMATION.replace("Device Minor: \t 3\n", ""))
    machine.capability("gi1", "4")
    gpu = machine.devices()[GPU]
    assert ([str(node) for node in gpu.nodes], gpu.uuid, gpu.instances) == (["226:1"], UUID, ())


def test_mig_instances_belong_to_their_gpu(machine: Parts) -> None:
    """By the minor of the GPU. Their nodes are rights and not counted: all calls are made on the GPU's node."""
    machine.pci(GPU, "nvidia")
    machine.pci(TPU, "nvidia")
    machine.information(INFORMATION)
    machine.information(INFORMATION.replace("Minor: \t 3", "Minor: \t 0").replace("5d5b", "aaaa"), TPU)
    for path, minor in (("gi10", "100"), ("gi2", "12"), ("gi2/ci0", "13"), ("gi2/ci1", "14"), ("gi10/ci0", "101")):
        machine.capability(path, minor)
    machine.capability("gi1", "3", gpu=0)
    machine.capability("config", "1")  # who may make instances, no instance
    found = machine.devices()
    assert [(each.gpu_instance, each.compute_instance, each.node) for each in found[GPU].instances] == [
        (2, None, Node("nvidia-caps/nvidia-cap12", 238, 12)),
        (2, 0, Node("nvidia-caps/nvidia-cap13", 238, 13)),
        (2, 1, Node("nvidia-caps/nvidia-cap14", 238, 14)),
        (10, None, Node("nvidia-caps/nvidia-cap100", 238, 100)),
        (10, 0, Node("nvidia-caps/nvidia-cap101", 238, 101)),
    ]
    assert found[TPU].instances == (MigInstance(1, None, Node("nvidia-caps/nvidia-cap3", 238, 3)),)
    assert [str(node) for node in found[GPU].nodes] == ["195:3"]


@pytest.mark.parametrize("minor", ["", "-1", "x", "1 2", "9999999", "1\x00"])
def test_a_capability_that_is_none(machine: Parts, minor: str) -> None:
    machine.pci(GPU, "nvidia")
    machine.information(INFORMATION)
    machine.capability("gi1", minor)
    machine.capability("gi1/ci0", "5")
    machine.capability("gix", "6")
    machine.capability("gi1/../gi2", "7")
    (machine.procfs / "driver/nvidia/capabilities/gpu3/mig/gi3").symlink_to("gi3")
    assert [each.node.minor for each in machine.devices()[GPU].instances] == [5, 7]


def test_without_the_number_of_capabilities_there_are_none(machine: Parts) -> None:
    machine.pci(GPU, "nvidia")
    machine.information(INFORMATION)
    machine.capability("gi1", "3")
    (machine.procfs / "devices").write_text(DEVICES)
    assert machine.devices()[GPU].instances == ()


# ---- KFD ----


def ids(found: dict[str, Device]) -> dict[str, tuple[int | None, str | None]]:
    return {address: (device.kfd_gpu_id, device.partition_of) for address, device in found.items()}


def test_gpus_are_known_to_kfd_by_their_render_nodes(machine: Parts) -> None:
    machine.kfd_node(0, 0, cpu_cores_count=64, location_id=0, domain=0, drm_render_minor=0)
    machine.instinct(INSTINCT, 1)
    machine.instinct(OTHER, 0)
    machine.kfd_node(1, 51110, location_id=0xC100, domain=0, drm_render_minor=129)
    machine.kfd_node(2, 4094, location_id=0x0200, domain=1, drm_render_minor=128)
    assert ids(machine.devices()) == {INSTINCT: (51110, None), OTHER: (4094, None)}
    assert machine.problems() == ()


@pytest.mark.parametrize("partition", [lambda number: number, lambda number: number << 28])
def test_partitions_of_instinct(machine: Parts, partition: Callable[[int], int]) -> None:
    """The partition's number stands in the location: in its low bits since 6.8, in the highest ones before."""
    machine.instinct(INSTINCT, 1, 3, 4)
    machine.instinct(OTHER, 0, 11)
    for number, (gpu_id, location, domain, minor, part) in enumerate(
        [
            (100, 0xC100, 0, 129, 0),
            (101, 0xC100, 0, 203, 1),
            (102, 0xC100, 0, 204, 2),
            (200, 0x0200, 1, 128, 0),
            (201, 0x0200, 1, 211, 1),
        ]
    ):
        place = location | partition(part)
        machine.kfd_node(number, gpu_id, location_id=place, domain=domain, drm_render_minor=minor)
    assert ids(machine.devices()) == {
        INSTINCT: (100, None),
        "amdgpu_xcp_3": (101, INSTINCT),
        "amdgpu_xcp_4": (102, INSTINCT),
        OTHER: (200, None),
        "amdgpu_xcp_11": (201, OTHER),
    }


def test_a_partition_whose_device_is_not_certain_says_none(machine: Parts) -> None:
    """Function 1 may be a virtual function that is partitioned, or the partition 1 of function 0."""
    machine.instinct(INSTINCT, 1, 3)
    machine.instinct("0000:c1:00.1", 2)
    machine.kfd_node(1, 7, location_id=0xC101, domain=0, drm_render_minor=203)
    assert ids(machine.devices())["amdgpu_xcp_3"] == (7, None)


@pytest.mark.parametrize(
    ("gpu_id", "properties"),
    [
        ("", {"drm_render_minor": 129}),
        ("x", {"drm_render_minor": 129}),
        ("-1", {"drm_render_minor": 129}),
        (str(1 << 32), {"drm_render_minor": 129}),
        ("9" * 5000, {"drm_render_minor": 129}),
        ("7", {}),
        ("7", {"drm_render_minor": -1}),
    ],
)
def test_a_node_of_the_topology_that_cannot_be_read_is_told(
    machine: Parts, gpu_id: str, properties: dict[str, int]
) -> None:
    machine.instinct(INSTINCT, 1)
    machine.kfd_node(4, gpu_id, **properties)
    assert ids(machine.devices()) == {INSTINCT: (None, None)}
    (problem,) = machine.problems()
    assert "node 4 of KFD's topology" in problem


def test_a_topology_that_the_device_cgroup_hides(machine: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    """The kernel answers EPERM, for root too: to read_text() that is an empty file."""
    machine.instinct(INSTINCT, 1)
    hidden = machine.kfd_node(1, 7, location_id=0xC100, domain=0, drm_render_minor=129)
    monkeypatch.setattr(kfd, "read_text", lambda path: "" if path.parent == hidden else read_text(path))
    assert ids(machine.devices()) == {INSTINCT: (None, None)}
    assert len(machine.problems()) == 1


def test_a_gpu_goes_while_its_topology_is_read(machine: Parts, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.instinct(INSTINCT, 1)
    place = machine.kfd_node(1, 7, location_id=0xC100, domain=0, drm_render_minor=129)
    machine.kfd_node(2, 8, location_id=0, domain=0, drm_render_minor=130)

    def going(path: Path) -> str:
        text = read_text(path)
        if path == place / "gpu_id":
            shutil.rmtree(place)
        return text

    monkeypatch.setattr(kfd, "read_text", going)
    found = discover(machine.sysfs, TABLES)
    assert ids({device.address: device for device in found.devices}) == {INSTINCT: (None, None)}
    assert len(found.problems) == 1


# ---- hostile ----

JUNK = st.binary(max_size=40) | st.sampled_from([b"0\n", b"7\n", b"9" * 4400])
PROPERTIES = st.lists(
    st.tuples(st.sampled_from([b"location_id", b"domain", b"drm_render_minor", b"\xff"]), JUNK), max_size=5
)


@settings(max_examples=60, deadline=None)
@given(JUNK, PROPERTIES, st.binary(max_size=80), JUNK)
def test_whatever_stands_in_the_files_it_is_survived(
    gpu_id: bytes, properties: list[tuple[bytes, bytes]], information: bytes, access: bytes
) -> None:
    with tempfile.TemporaryDirectory() as place:
        machine = Parts(Path(place))
        machine.instinct(INSTINCT, 1, 3)
        machine.pci(GPU, "nvidia")
        node = machine.kfd_node(1, 0)
        (node / "gpu_id").write_bytes(gpu_id)
        (node / "properties").write_bytes(b"".join(key + b" " + value + b"\n" for key, value in properties))
        machine.information("")
        machine.capability("gi1", "1")
        for file, data in (
            ("gpus/0000:01:00.0/information", b"Device Minor: 3\n" + information),
            ("capabilities/gpu3/mig/gi1/access", b"DeviceFileMinor: " + access),
        ):
            (machine.procfs / "driver/nvidia" / file).write_bytes(data)
        found = machine.devices()
        assert {INSTINCT, "amdgpu_xcp_3"} <= set(found)
        for device in found.values():
            assert (device.model or "").isprintable()
            assert device.kfd_gpu_id is None or 0 < device.kfd_gpu_id < 1 << 32


def test_directories_in_the_place_of_files_and_links_in_a_circle(machine: Parts) -> None:
    machine.instinct(INSTINCT, 1)
    machine.pci(GPU, "nvidia")
    for path in ("class/kfd/kfd/topology/nodes/1/gpu_id", "class/kfd/kfd/topology/nodes/1/properties"):
        (machine.sysfs / path).mkdir(parents=True)
    (machine.sysfs / "class/kfd/kfd/topology/nodes/2").symlink_to("2")
    (machine.procfs / "driver/nvidia/gpus").mkdir(parents=True)
    (machine.procfs / "driver/nvidia/gpus" / GPU).symlink_to(GPU)
    (machine.procfs / "devices").write_text(CAPABILITIES)
    assert machine.devices()[INSTINCT].kfd_gpu_id is None
    assert len(machine.problems()) == 2


# ---- shown ----


def test_devices_shows_what_is_known(machine: Parts, capsys: pytest.CaptureFixture[str]) -> None:
    machine.pci(GPU, "nvidia")
    machine.information(INFORMATION)
    machine.capability("gi1", "12")
    machine.capability("gi1/ci0", "13")
    machine.instinct(INSTINCT, 1, 3)
    machine.kfd_node(1, 100, location_id=0xC100, domain=0, drm_render_minor=129)
    machine.kfd_node(2, 101, location_id=0xC101, domain=0, drm_render_minor=203)
    words = ["devices", "--sysfs", str(machine.sysfs), "--drivers-dir", os.devnull]
    assert main.main([*words, "--json"]) == 0
    rows = {row["address"]: row for row in json.loads(capsys.readouterr().out)}
    assert (rows[GPU]["uuid"], rows[GPU]["model"], rows[GPU]["kfd_gpu_id"]) == (UUID, "NVIDIA H100 80GB HBM3", None)
    assert rows[GPU]["instances"][1] == {
        "gpu_instance": 1,
        "compute_instance": 0,
        "node": {"name": "nvidia-caps/nvidia-cap13", "major": 238, "minor": 13},
    }
    assert (rows["amdgpu_xcp_3"]["partition_of"], rows["amdgpu_xcp_3"]["kfd_gpu_id"]) == (INSTINCT, 101)
    assert main.main([*words, "-o", "wide"]) == 0
    lines = {line.split()[2]: line for line in capsys.readouterr().out.splitlines()[1:]}
    assert "NVIDIA H100 80GB HBM3" in lines[GPU] and UUID in lines[GPU]
    assert " 1,1/0 " in lines[GPU]
    assert " 101 " in lines["amdgpu_xcp_3"] and f" of {INSTINCT} " in lines["amdgpu_xcp_3"]
