# SPDX-License-Identifier: Apache-2.0
"""From sysfs and driver tables to the kinds of calls per device: only what is there is read, in the release that is."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.model.device import CountField, GpuField
from kubenpu.model.kinds import ELSEWHERE, Kind
from kubenpu.model.sample import DeviceRule, NodeRule
from kubenpu.service.inventory import apply_rules, needs_file_ioctl, read_inventory
from tests.unit.test_chardevs import Machine
from tests.unit.test_devices import IGPU, SAMPLES, FakeSysfs

RENUMBERED = """
name = "npu9"
subsystem = "accel"
uevent_drivers = ["npu9"]
ioctl_type = 0x64
ioctl = [{ nr = 0x41, kind = "submit", name = "NPU9_RUN" }]
[[release]]
module = "npu9_pci"
first = "2.0"
last = "2.9"
ioctl = [{ nr = 0x42, kind = "submit", name = "NPU9_RUN" }]
[visibility]
submit = "always"
"""
NPU = "devices/platform/npu"


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    sysfs = FakeSysfs(tmp_path / "sys")
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    sysfs.add_device(NPU, ["DRIVER=npu9"])
    sysfs.add_node(NPU, "accel0", "261:0")
    return sysfs


def test_only_the_tables_of_devices_that_are_there_have_calls(sysfs: FakeSysfs, tmp_path: Path) -> None:
    tables = read_inventory(sysfs.root, tmp_path).tables
    shipped = {table.name: any(interface.ioctls for interface in table.interfaces) for table in tables.tables}
    assert [name for name, has_calls in shipped.items() if has_calls] == ["i915"]
    assert tables.core.interfaces[0].ioctls


@pytest.mark.parametrize(
    ("version", "nr"), [(None, 0x41), ("1.9", 0x41), ("2.0", 0x42), ("2.5-rc1\n", 0x42), ("3.0", 0x41), ("\xff", 0x41)]
)
def test_kinds_follow_the_release_of_the_module(sysfs: FakeSysfs, tmp_path: Path, version: str | None, nr: int) -> None:
    (tmp_path / "npu9.toml").write_text(RENUMBERED)
    if version is not None:
        module = sysfs.root / "module/npu9_pci"
        module.mkdir(parents=True)
        (module / "version").write_bytes(version.encode("latin-1"))
    kinds = read_inventory(sysfs.root, tmp_path).kinds
    assert [number for number in range(256) if kinds["npu"][number] == Kind.SUBMIT] == [nr]
    assert kinds["0000:00:02.0"][0x69] == Kind.SUBMIT


def test_a_drm_node_with_a_number_that_is_none_of_drms_is_no_other_node(sysfs: FakeSysfs, tmp_path: Path) -> None:
    sysfs.add_node(IGPU, "card1", "99:1")
    inventory = read_inventory(sysfs.root, tmp_path)
    assert len(inventory.devices[0].nodes) == 2
    assert (inventory.commands, needs_file_ioctl(inventory)) == ({}, False)


def test_a_device_without_table_has_the_cores_calls(sysfs: FakeSysfs, tmp_path: Path) -> None:
    kinds = read_inventory(sysfs.root, tmp_path).kinds
    assert kinds["npu"][0x09] == Kind.FREE
    assert set(kinds["npu"][0x40:0xA0]) == {Kind.OTHER}


OTHER_APEX = """
name = "apex2"
subsystem = "char"
nodes = [{ devname = "apex_*", class = "other" }]
ioctl_type = 0x4e
ioctl = [{ nr = 0x01, kind = "submit", name = "APEX2_RUN" }]
[visibility]
submit = "always"
"""


def test_calls_of_a_node_are_those_of_the_interface_that_it_was_found_by(tmp_path: Path) -> None:
    """Not of another one whose pattern fits the name as well."""
    machine = Machine(tmp_path / "machine")
    machine.node("apex_0", "120:0", "apex", machine.pci("0000:02:00.0", "apex", "11800", "1AC1:089A"))
    machine.node("apex_1", "121:0", "other")
    (tmp_path / "drivers").mkdir()
    (tmp_path / "drivers/apex2.toml").write_text(OTHER_APEX)
    commands = read_inventory(machine.sysfs, tmp_path / "drivers").commands
    types = {str(node): {table.value for table in found.tables} for node, found in commands.items()}
    assert types == {"120:0": {0xDC, 0x7F}, "121:0": {0x4E}}


def test_which_majors_are_shared(tmp_path: Path) -> None:
    """With devices that are no accelerators: calls on minors that are not known are then no losses."""
    machine = Machine(tmp_path / "machine")
    machine.node("kfd", "236:0", "kfd")
    machine.node("rknpu", "10:125", "misc", machine.pci("0000:03:00.0", "RKNPU"))
    gpu = machine.pci("0000:01:00.0", "vfio-pci")
    members = machine.sysfs / "kernel/iommu_groups/12/devices"
    members.mkdir(parents=True)
    (members / gpu.name).symlink_to(gpu)
    machine.node("12", "235:0", "vfio", devname="vfio/12")
    machine.node("vfio", "10:196", "misc", devname="vfio/vfio")
    commands = read_inventory(machine.sysfs, tmp_path / "none").commands
    assert {str(node): found.shared for node, found in commands.items()} == {
        "236:0": False,
        "10:125": True,
        "235:0": True,
        "10:196": True,
    }


class Rules:
    """What would be written to the kernel."""

    def __init__(self) -> None:
        self.slots: dict[str, int] = {}
        self.drm: list[DeviceRule] = []
        self.nodes: list[NodeRule] = []

    def assign_slot(self, address: str) -> int | None:
        return self.slots.setdefault(address, len(self.slots)) if address != "npu" else None

    def write_rules(self, rules: Iterable[DeviceRule]) -> list[DeviceRule]:
        self.drm = list(rules)
        return []

    def write_nodes(self, rules: Iterable[NodeRule]) -> list[NodeRule]:
        self.nodes = list(rules)
        return []


def test_a_node_for_all_gpus_is_told_their_slots_and_what_names_them(sysfs: FakeSysfs, tmp_path: Path) -> None:
    sysfs.add_device("devices/virtual/kfd/kfd", ["MAJOR=240", "MINOR=0", "DEVNAME=kfd"])
    (sysfs.root / "dev/char").mkdir(parents=True)
    (sysfs.root / "dev/char/240:0").symlink_to("../../devices/virtual/kfd/kfd")
    (sysfs.root / "devices/virtual/kfd/kfd/subsystem").symlink_to(sysfs.root / "class/kfd")
    found = read_inventory(sysfs.root, tmp_path)
    devices = [replace(each, kfd_gpu_id=4711 if each.vendor == "i915" else None) for each in found.devices]
    devices.append(replace(devices[0], address="npu", kfd_gpu_id=12))
    store = Rules()
    apply_rules(store, replace(found, devices=tuple(devices)), tmp_path)  # type: ignore[arg-type]
    (node,) = store.nodes
    assert node.gpus == {4711: store.slots["0000:00:02.0"]}
    arguments = {nr: each for table in node.tables for nr, each in table.arguments.items()}
    assert arguments[0x02] == GpuField(88, 36, 4, "gpu_id")
    assert {rule.slot for rule in store.drm} == {store.slots["0000:00:02.0"]}


def test_arguments_of_drm_follow_the_driver(sysfs: FakeSysfs, tmp_path: Path) -> None:
    inventory = read_inventory(sysfs.root, tmp_path)
    assert inventory.arguments == {"0000:00:02.0": {}, "npu": {}}
    (sysfs.root / NPU / "uevent").write_text("DRIVER=qaic\n")
    assert read_inventory(sysfs.root, tmp_path).arguments["npu"] == dict.fromkeys((0x44, 0x45), CountField(16, 0, 4))


def test_who_counts_a_call_that_nouveau_answers_before_drm_ioctl(sysfs: FakeSysfs, tmp_path: Path) -> None:
    gpu = "devices/pci0000:00/0000:01:00.0"
    sysfs.add_device(gpu, ["DRIVER=nouveau", "PCI_SLOT_NAME=0000:01:00.0"], "pci")
    for node, number in (("card1", "226:1"), ("renderD129", "226:129")):
        sysfs.add_node(gpu, node, number)
    inventory, rules = read_inventory(sysfs.root, tmp_path), Rules()
    assert needs_file_ioctl(inventory)
    assert apply_rules(rules, inventory, tmp_path) != ()  # type: ignore[arg-type]  # of the device without a slot
    drm = {(rule.major, rule.minor): rule for rule in rules.drm}
    for minor in (1, 129):
        assert drm[226, minor].kinds[0x47] == ELSEWHERE
        assert drm[226, minor].kinds.count(ELSEWHERE) == 1
        assert 0x47 not in drm[226, minor].arguments
    assert ELSEWHERE not in drm[226, 0].kinds
    slot = rules.slots["0000:01:00.0"]
    assert [(rule.minor, rule.slot, rule.early, rule.whole) for rule in rules.nodes] == [
        (1, slot, True, False),
        (129, slot, True, False),
    ]
    for rule in rules.nodes:
        (table,) = rule.tables
        assert (table.mask, table.value, [*table.arguments]) == (0, 0, [0x47])
        assert [nr for nr in range(256) if table.kinds[nr] != ELSEWHERE] == [0x47]
