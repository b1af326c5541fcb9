# SPDX-License-Identifier: Apache-2.0
"""Nodes outside drm and accel: found in sysfs and procfs as the kernel and NVIDIA's driver lay them out."""

from __future__ import annotations

import errno
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.chardevs import event_subsystems, find_char_nodes
from kubenpu.devices.discovery import discover
from kubenpu.devices.tables import command_tables, load_tables
from kubenpu.kernel import layout
from kubenpu.model.device import Device, DriverTable, IoctlRule
from kubenpu.model.kinds import Kind

TABLES = load_tables(Path("/nonexistent")).tables
GPU, TPU = "0000:01:00.0", "0000:02:00.0"
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n243 nvidia-uvm\n\nBlock devices:\n195 fake\n"


class Machine:
    """sysfs and procfs beside each other."""

    def __init__(self, place: Path) -> None:
        self.sysfs, self.procfs = place / "sys", place / "proc"
        (self.sysfs / "dev/char").mkdir(parents=True)
        self.procfs.mkdir(parents=True)

    def pci(self, address: str, driver: str, pci_class: str = "30200", pci_id: str = "10DE:2330") -> Path:
        home = self.sysfs / "devices/pci0000:00" / address
        home.mkdir(parents=True)
        lines = (f"DRIVER={driver}", f"PCI_CLASS={pci_class}", f"PCI_ID={pci_id}", f"PCI_SLOT_NAME={address}")
        (home / "uevent").write_text("".join(f"{line}\n" for line in lines))
        bus = self.sysfs / "bus/pci/devices"
        bus.mkdir(parents=True, exist_ok=True)
        (bus / address).symlink_to(home)
        return home

    def node(self, name: str, number: str, sysfs_class: str, parent: Path | None = None, devname: str = "") -> Path:
        home = (parent or self.sysfs / "devices/virtual") / sysfs_class / name
        home.mkdir(parents=True)
        major, _, minor = number.partition(":")
        (home / "uevent").write_text(f"MAJOR={major}\nMINOR={minor}\nDEVNAME={devname or name}\n")
        classes = self.sysfs / "class" / sysfs_class
        classes.mkdir(parents=True, exist_ok=True)
        (classes / name).symlink_to(home)
        (home / "subsystem").symlink_to(classes)
        if parent is not None:
            (home / "device").symlink_to(parent)
        (self.sysfs / "dev/char" / number).symlink_to(home)
        return home

    def nvidia(self, *minors: tuple[str, str], devices: str = DEVICES) -> None:
        (self.procfs / "devices").write_text(devices)
        for address, minor in minors:
            home = self.procfs / "driver/nvidia/gpus" / address
            home.mkdir(parents=True)
            (home / "information").write_text(f"Model: \t\t H100\nDevice Minor: \t {minor}\nGPU Excluded:\t No\n")

    def devices(self) -> dict[str, Device]:
        return {device.address: device for device in discover(self.sysfs, TABLES).devices}


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path)


def shown(device: Device) -> tuple[str | None, str | None, list[str]]:
    return device.vendor, device.driver, [f"{node.name} {node}" for node in device.nodes]


def test_a_gpu_of_nvidia_is_one_device(machine: Machine) -> None:
    """The DRM node, which sysfs knows, and the node that only procfs knows, under the PCI address."""
    home = machine.pci(GPU, "nvidia")
    machine.node("card1", "226:1", "drm", home, "dri/card1")
    machine.nvidia((GPU, "0"), (TPU, "7"))  # the second one is not in sysfs: it is going away
    found = machine.devices()
    assert shown(found[GPU]) == ("nvidia", "nvidia", ["nvidia0 195:0", "dri/card1 226:1"])
    assert (found[GPU].pci_id, found[GPU].subsystem) == ("10DE:2330", "drm")
    assert shown(found[TPU]) == ("nvidia", None, ["nvidia7 195:7"])
    assert shown(found["nvidiactl"]) == ("nvidia", None, ["nvidiactl 195:255"])
    assert shown(found["nvidia-uvm"])[2] == ["nvidia-uvm 243:0", "nvidia-uvm 243:1"]
    assert {device.vendor for device in found.values()} == {"nvidia", "nvidia-uvm", "nvidia-modeset"}


def test_nodes_that_stand_for_several_devices_or_for_none_are_told(machine: Machine) -> None:
    """What nobody can hold alone nobody pays for: the node has one GPU, and Neuron's devices, which have no PCI
    function in sysfs either, are accelerators."""
    home = machine.pci(GPU, "nvidia")
    machine.node("card1", "226:1", "drm", home, "dri/card1")
    machine.nvidia((GPU, "0"))
    machine.node("kfd", "236:0", "kfd")
    machine.node("neuron0", "237:0", "neuron_device")
    npu = machine.pci(TPU, "habanalabs", "120000", "1DA3:1020")
    machine.node("accel0", "261:0", "accel", npu, "accel/accel0")
    machine.node("accel_controlD0", "240:1", "accel", npu, "accel/accel_controlD0")
    found = machine.devices()
    assert {address for address, device in found.items() if not device.auxiliary} == {GPU, TPU, "neuron0"}
    others = {"nvidiactl", "nvidia-uvm", "nvidia-modeset", "kfd", "accel_controlD0"}
    assert {address for address, device in found.items() if device.auxiliary} == others


@pytest.mark.parametrize("devices", ["", "Character devices:\n 1 mem\n\nBlock devices:\n195 nvidia\n"])
def test_no_driver_no_nodes(machine: Machine, devices: str) -> None:
    machine.pci(GPU, "nouveau")
    machine.nvidia(devices=devices)
    assert machine.devices() == {}


@pytest.mark.parametrize("minor", ["", "none", "248", "-1", "99999", "0 1", "0\x00"])
def test_what_procfs_says_is_not_believed_blindly(machine: Machine, minor: str) -> None:
    machine.nvidia((GPU, minor))
    assert not [node for device in machine.devices().values() for node in device.nodes if node.name[6:].isdecimal()]


def test_nodes_of_classes(machine: Machine) -> None:
    machine.node("kfd", "236:0", "kfd")
    machine.node("apex_0", "120:0", "apex", machine.pci(TPU, "apex", "11800", "1AC1:089A"))
    machine.node("tenstorrent!3", "238:3", "tenstorrent", devname="tenstorrent/3")
    machine.node("apex_9", "121:0", "other")  # the name without the class
    machine.node("tty1", "4:1", "tty")
    found = machine.devices()
    assert shown(found["kfd"]) == ("amdkfd", None, ["kfd 236:0"])
    assert shown(found[TPU]) == ("apex", "apex", ["apex_0 120:0"])
    assert shown(found["tenstorrent!3"]) == ("tenstorrent", None, ["tenstorrent/3 238:3"])
    assert len(found) == 3


def test_a_control_node_is_a_device_of_its_own(machine: Machine) -> None:
    """Else its calls, of which nobody sees the end, would take the errors of the accelerator along."""
    home = machine.pci(GPU, "habanalabs", "120000", "1DA3:1020")
    machine.node("accel0", "261:0", "accel", home, "accel/accel0")
    machine.node("accel_controlD0", "240:1", "accel", home, "accel/accel_controlD0")
    found = machine.devices()
    assert shown(found[GPU])[2] == ["accel/accel0 261:0"]
    assert shown(found["accel_controlD0"]) == ("habanalabs", None, ["accel/accel_controlD0 240:1"])


@pytest.mark.parametrize(
    ("pci_class", "pci_id", "counted"),
    [
        ("30200", "10DE:2330", True),
        ("120000", "1E52:401E", True),
        ("20000", "8086:10FB", False),
        ("FF00", "1AE0:0063", True),
    ],
)
def test_groups_of_vfio_count_when_an_accelerator_is_in_them(
    machine: Machine, pci_class: str, pci_id: str, counted: bool
) -> None:
    home = machine.pci(GPU, "vfio-pci", pci_class, pci_id)
    members = machine.sysfs / "kernel/iommu_groups/12/devices"
    members.mkdir(parents=True)
    (members / GPU).symlink_to(home)
    machine.node("12", "235:0", "vfio", devname="vfio/12")
    machine.node("vfio", "10:196", "misc", devname="vfio/vfio")
    found = machine.devices()
    assert ({GPU, "vfio"} if counted else set()) == set(found)
    if counted:
        assert shown(found[GPU]) == ("vfio-pci", "vfio-pci", ["vfio/12 235:0"])


def test_a_node_of_vfio_for_one_device(machine: Machine) -> None:
    """Where the kernel has IOMMUFD; the function beside it is no accelerator."""
    home = machine.pci(GPU, "vfio-pci")
    machine.node("vfio0", "511:0", "vfio-dev", home, "vfio/devices/vfio0")
    machine.node("vfio1", "511:1", "vfio-dev", machine.pci(TPU, "vfio-pci", "40300"), "vfio/devices/vfio1")
    assert {address: shown(device)[2] for address, device in machine.devices().items()} == {
        GPU: ["vfio/devices/vfio0 511:0"]
    }


def test_a_group_that_goes_while_it_is_looked_at(machine: Machine, monkeypatch: pytest.MonkeyPatch) -> None:
    machine.node("12", "235:0", "vfio", devname="vfio/12")
    members = machine.sysfs / "kernel/iommu_groups/12/devices"
    members.mkdir(parents=True)
    there = Path.iterdir

    def gone(path: Path) -> Iterator[Path]:
        if path == members:
            raise FileNotFoundError(errno.ENOENT, "gone", str(path))
        return there(path)

    monkeypatch.setattr(Path, "iterdir", gone)
    assert machine.devices() == {}


def test_heaps_alone_are_no_accelerators(machine: Machine) -> None:
    machine.node("system", "250:0", "dma_heap", devname="dma_heap/system")
    assert machine.devices() == {}
    machine.node("kfd", "236:0", "kfd")
    assert set(machine.devices()) == {"kfd"}
    npu = machine.sysfs / "devices/platform/fdab0000.npu"
    npu.mkdir(parents=True)
    (npu / "uevent").write_text("DRIVER=RKNPU\nOF_NAME=npu\n")
    machine.node("rknpu", "10:125", "misc", npu)
    assert set(machine.devices()) == {"kfd", "fdab0000.npu", "system"}


def test_a_link_to_nowhere_and_names_that_are_none(machine: Machine) -> None:
    (machine.sysfs / "dev/char/236:0").symlink_to("../../devices/virtual/kfd/kfd")
    (machine.sysfs / "dev/char/kfd").symlink_to("../../devices/virtual/kfd/kfd")
    (machine.sysfs / "dev/char/99999:0").symlink_to("../../devices/virtual/kfd/kfd")
    assert machine.devices() == {}


def test_without_tables_nothing_is_read(machine: Machine) -> None:
    machine.node("kfd", "236:0", "kfd")
    assert list(find_char_nodes(machine.sysfs, machine.procfs, ())) == []


def test_events_of_every_class_are_followed() -> None:
    found = event_subsystems(TABLES)
    assert {"module", "pci", "kfd", "apex", "tenstorrent", "vfio", "misc"} <= found


# ---- commands ----


def call(kind: Kind, nr: int, ioctl_type: int, cmd: int | None = None) -> IoctlRule:
    return IoctlRule("CALL", nr, kind, ioctl_type, cmd)


def kind_of(calls: Sequence[IoctlRule], cmd: int) -> Kind:
    """As the kernel looks it up."""
    for table in command_tables(calls):
        if cmd >> 8 & table.mask == table.value:
            return Kind(table.kinds[cmd & 0xFF])
    return Kind.OTHER


def test_whole_commands_come_first_and_leave_the_others_alone() -> None:
    calls = [
        call(Kind.MAP, 8, 0x4D),
        call(Kind.FREE, 9, 0x4D),
        call(Kind.ALLOC, 8, 0x4D, 0x4D08),
        call(Kind.CONTEXT, 1, 0, 0x30000001),
        call(Kind.WAIT, 8, 0x58),
    ]
    assert kind_of(calls, 0x4D08) is Kind.ALLOC
    assert kind_of(calls, 0xC0104D08) is Kind.MAP
    assert kind_of(calls, 0x4D09) is kind_of(calls, 0xC0104D09) is Kind.FREE
    assert (kind_of(calls, 0x30000001), kind_of(calls, 1)) == (Kind.CONTEXT, Kind.OTHER)
    assert (kind_of(calls, 0x5808), kind_of(calls, 0x5908)) == (Kind.WAIT, Kind.OTHER)


RULES = st.lists(
    st.builds(
        lambda kind, cmd, whole: call(kind, cmd & 0xFF, cmd >> 8 & 0xFF, cmd if whole else None),
        st.sampled_from(Kind),
        st.integers(0, 0x3FFF) | st.integers(0, 0xFFFFFFFF),
        st.booleans(),
    ),
    max_size=12,
    unique_by=lambda rule: (rule.type, rule.nr, rule.cmd),
)


@given(RULES, st.integers(0, 0xFFFFFFFF))
def test_every_listed_command_is_found(calls: list[IoctlRule], other: int) -> None:
    for rule in calls:
        if rule.cmd is not None:
            assert kind_of(calls, rule.cmd) is rule.kind
    expected = [r.kind for r in calls if r.cmd == other] + [
        r.kind for r in calls if r.cmd is None and (r.type, r.nr) == (other >> 8 & 0xFF, other & 0xFF)
    ]
    assert kind_of(calls, other) is (expected[0] if expected else Kind.OTHER)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: str(table.name))
def test_every_table_fits_into_the_kernel(table: DriverTable) -> None:
    for interface in table.interfaces:
        assert len(command_tables(interface.ioctls)) <= layout.CHAIN
