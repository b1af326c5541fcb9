# SPDX-License-Identifier: Apache-2.0
"""Discovery and `kubenpuctl devices` and `drivers` over trees that are laid out as the kernel lays out sysfs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubenpu.devices.discovery import Inventory, discover, is_node
from kubenpu.devices.sysfs import parse_uevent
from kubenpu.devices.tables import load_tables
from kubenpu.model.device import Device
from kubenpu.model.errors import SourceError

SAMPLES: dict[str, list[str]] = json.loads((Path(__file__).parents[1] / "fixtures" / "uevents.json").read_text())
TABLES = load_tables(Path("/nonexistent")).tables
IGPU = "devices/pci0000:00/0000:00:02.0"


class FakeSysfs:
    """A sysfs tree: directories below devices/, and links to them from class/ and back, as in the real one."""

    def __init__(self, root: Path) -> None:
        self.root = root
        root.mkdir(exist_ok=True)

    def add_device(
        self, path: str, uevent: Sequence[str] | bytes, bus: str | None = None, numa_node: str | None = None
    ) -> Path:
        device = self.root / path
        device.mkdir(parents=True)
        data = uevent if isinstance(uevent, bytes) else "".join(f"{line}\n" for line in uevent).encode()
        (device / "uevent").write_bytes(data)
        if bus is not None:
            (self.root / "bus" / bus).mkdir(parents=True, exist_ok=True)
            self._link(device / "subsystem", self.root / "bus" / bus)
        if numa_node is not None:
            (device / "numa_node").write_text(f"{numa_node}\n")
        return device

    def add_node(self, parent: str | None, name: str, number: str, uevent: Sequence[str] | None = None) -> Path:
        subsystem = "accel" if name.startswith("accel") else "drm"
        home = self.root / (parent or "devices/virtual") / subsystem / name
        home.mkdir(parents=True)
        major, _, minor = number.partition(":")
        lines = uevent if uevent is not None else [f"MAJOR={major}", f"MINOR={minor}", "DEVTYPE=drm_minor"]
        (home / "uevent").write_text("".join(f"{line}\n" for line in lines))
        (home / "dev").write_text(f"{number}\n")
        if parent is not None:
            self._link(home / "device", self.root / parent)
        classes = self.root / "class" / subsystem
        classes.mkdir(parents=True, exist_ok=True)
        self._link(classes / name, home)
        return home

    @staticmethod
    def _link(link: Path, target: Path) -> None:
        link.symlink_to(os.path.relpath(target, link.parent))


@pytest.fixture
def sysfs(tmp_path: Path) -> FakeSysfs:
    return FakeSysfs(tmp_path / "sys")


def find(sysfs: FakeSysfs) -> Inventory:
    return discover(sysfs.root, TABLES)


def only(sysfs: FakeSysfs) -> Device:
    inventory = find(sysfs)
    assert inventory.problems == ()
    (device,) = inventory.devices
    return device


def numbers(device: Device) -> str:
    return ",".join(map(str, device.nodes))


# Per sample: device path, node -> address, driver, vendor, PCI ID.
PARENTS = {
    "01 intel igpu": (IGPU, "card0", "0000:00:02.0", "i915", "i915", "8086:9A49"),
    "04 intel npu": (
        "devices/pci0000:00/0000:00:0b.0", "accel0", "0000:00:0b.0", "intel_vpu", "intel_vpu", "8086:643E",
    ),
    "05 amd npu": ("devices/pci0000:00/0000:c5:00.1", "accel0", "0000:c5:00.1", "amdxdna", "amdxdna", "1022:17F0"),
    "06 nvidia data centre gpu": (
        "devices/pci0001:00/0001:1b:00.0", "card1", "0001:1b:00.0", "nvidia", "nvidia", "10DE:2330",
    ),
    "07 virtual function of a xe device": (
        "devices/pci0000:80/0000:84:00.3", "renderD130", "0000:84:00.3", "xe", "xe", "8086:E223",
    ),
    "10 panthor on device tree": ("devices/platform/fb000000.gpu", "card0", "fb000000.gpu", "panthor", "panthor", None),
    "11 rocket, parent of accel0": ("devices/platform/rknn", "accel0", "rknn", None, "rocket", None),
    "13 amd partition": ("devices/platform/amdgpu_xcp_3", "renderD131", "amdgpu_xcp_3", None, "amdgpu", None),
    "14 virtual machine": (
        "devices/pci0000:00/0000:00:10.0", "card0", "0000:00:10.0", "virtio-pci", "virtio_gpu", "1AF4:1050",
    ),
    "15 vgem in 6.12": ("devices/platform/vgem", "card1", "vgem", None, "vgem", None),
    "16 vgem in 7.3": ("devices/faux/vgem", "card1", "vgem", "faux_driver", "vgem", None),
    "17 tegra": ("devices/platform/13e00000.host1x/drm", "card0", "drm", "drm", "tegra", None),
    "18 etnaviv": ("devices/platform/etnaviv", "renderD128", "etnaviv", "etnaviv", "etnaviv", None),
    "19 value with equals signs (test text, legal by format)": (IGPU, "card0", "0000:00:02.0", "i915", "i915",
        "8086:5917"),
}  # fmt: skip
# These are no parents of a DRM or accel node; they have tests of their own below or in test_devices_watch.py.
OTHERS = {
    "02 render node itself", "03 accel node itself", "08 passed through", "09 no driver bound",
    "12 rocket, one core (not the parent of the node)", "20 neuron class device (no device link)",
    "21 connector, to be skipped", "22 empty (device being removed)", "23 netlink record of a new render node",
    "24 netlink record of a hang (7.3)",
}  # fmt: skip


def test_every_sample_has_a_test() -> None:
    assert PARENTS.keys() | OTHERS == SAMPLES.keys()


@pytest.mark.parametrize("sample", PARENTS)
def test_sampled_parents(sysfs: FakeSysfs, sample: str) -> None:
    path, node, address, driver, vendor, pci_id = PARENTS[sample]
    sysfs.add_device(path, SAMPLES[sample], "pci" if pci_id else "platform", numa_node="-1" if pci_id else None)
    sysfs.add_node(path, node, "261:0" if node == "accel0" else "226:7")
    device = only(sysfs)
    assert (device.address, device.driver, device.vendor, device.pci_id) == (address, driver, vendor, pci_id)
    assert device.subsystem == ("accel" if node == "accel0" else "drm")
    assert device.sysfs_path == str(sysfs.root / path)
    assert device.numa_node is None


@pytest.mark.parametrize(
    ("sample", "name", "node"),
    [("02 render node itself", "renderD129", "226:129"), ("03 accel node itself", "accel0", "261:0")],
)
def test_sampled_nodes_with_and_without_uevent(sysfs: FakeSysfs, sample: str, name: str, node: str) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"])
    home = sysfs.add_node(IGPU, name, node, SAMPLES[sample])
    (home / "dev").unlink()
    assert numbers(only(sysfs)) == node
    (home / "uevent").write_text("")
    (home / "dev").write_text(f"{node}\n")
    assert numbers(only(sysfs)) == node


@pytest.mark.parametrize(
    "sample",
    ["08 passed through", "09 no driver bound", "12 rocket, one core (not the parent of the node)",
     "20 neuron class device (no device link)"],
)  # fmt: skip
def test_devices_without_drm_or_accel_nodes_are_not_listed(sysfs: FakeSysfs, sample: str) -> None:
    sysfs.add_device("devices/elsewhere/0000:41:00.0", SAMPLES[sample], "pci")
    assert find(sysfs) == Inventory((), ())


def test_card_and_render_node_are_one_device(sysfs: FakeSysfs) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci", numa_node="1")
    sysfs.add_node(IGPU, "renderD128", "226:128")
    sysfs.add_node(IGPU, "card1", "226:1")
    device = only(sysfs)
    assert numbers(device) == "226:1,226:128"
    assert [node.name for node in device.nodes] == ["dri/card1", "dri/renderD128"]
    assert device.numa_node == 1


def test_a_screen_that_no_table_knows_has_no_time_to_charge(sysfs: FakeSysfs) -> None:
    """As of a server's BMC. What computes has a render node, also where its driver is new to us."""
    sysfs.add_device(IGPU, ["DRIVER=ast", "PCI_ID=1A03:2000", "PCI_SLOT_NAME=0000:00:02.0"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    assert only(sysfs).auxiliary
    sysfs.add_node(IGPU, "renderD128", "226:128")
    assert not only(sysfs).auxiliary


def test_connectors_control_nodes_and_files_are_skipped(sysfs: FakeSysfs) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    sysfs.add_node(IGPU, "card0-HDMI-A-1", "0:0", SAMPLES["21 connector, to be skipped"])
    sysfs.add_node(IGPU, "controlD64", "226:64")
    sysfs.add_node(IGPU, "accel_controlD0", "250:0")
    (sysfs.root / "class/drm/version").write_text("drm 1.1.0 20060810\n")
    assert numbers(only(sysfs)) == "226:0"
    assert not is_node("drm", "card\u0661") and not is_node("drm", "card0\n") and not is_node("block", "card0")


@pytest.mark.parametrize("hangs_under", ["", "/virtio0"])
def test_virtio_has_the_address_of_its_pci_function(sysfs: FakeSysfs, hangs_under: str) -> None:
    function = "devices/pci0000:00/0000:00:10.0"
    sysfs.add_device(function, SAMPLES["14 virtual machine"], "pci", numa_node="0")
    sysfs.add_device(f"{function}/virtio0", ["DRIVER=virtio_gpu", "MODALIAS=virtio:d00000010v00001AF4"], "virtio")
    sysfs.add_node(function + hangs_under, "card0", "226:0")
    device = only(sysfs)
    assert (device.address, device.driver, device.vendor) == ("0000:00:10.0", "virtio-pci", "virtio_gpu")
    assert (device.pci_id, device.numa_node) == ("1AF4:1050", 0)


def test_virtio_over_mmio(sysfs: FakeSysfs) -> None:
    carrier = "devices/platform/a003e00.virtio_mmio"
    sysfs.add_device(carrier, ["DRIVER=virtio-mmio", "MODALIAS=platform:virtio-mmio"], "platform")
    sysfs.add_device(f"{carrier}/virtio3", ["DRIVER=virtio_gpu"], "virtio")
    sysfs.add_node(f"{carrier}/virtio3", "card0", "226:0")
    device = only(sysfs)
    assert (device.address, device.vendor, device.pci_id) == ("a003e00.virtio_mmio", "virtio_gpu", None)


def test_a_usb_display_below_a_gpus_port_is_a_device_of_its_own(sysfs: FakeSysfs) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    sysfs.add_device(f"{IGPU}/usb1/1-1/1-1:1.0", ["DRIVER=udl"], "usb")
    sysfs.add_node(f"{IGPU}/usb1/1-1/1-1:1.0", "card1", "226:1")
    assert [device.address for device in find(sysfs).devices] == ["0000:00:02.0", "1-1:1.0"]


def test_a_node_without_parent_is_called_by_its_name(sysfs: FakeSysfs) -> None:
    sysfs.add_node(None, "card3", "226:3")
    device = only(sysfs)
    assert (device.address, device.driver, device.vendor, device.pci_id) == ("card3", None, None, None)


def test_same_names_on_different_buses_get_different_addresses(sysfs: FakeSysfs) -> None:
    for number, path in enumerate(("devices/faux/vgem", "devices/platform/vgem", "devices/a/0000:00:02.0", IGPU)):
        sample = {IGPU: "01 intel igpu"}.get(path, "15 vgem in 6.12")
        sysfs.add_device(path, SAMPLES[sample])
        sysfs.add_node(path, f"card{number}", f"226:{number}")
    by_path = {device.sysfs_path: device.address for device in find(sysfs).devices}
    assert len(set(by_path.values())) == 4
    assert by_path[str(sysfs.root / IGPU)] == "0000:00:02.0"
    assert by_path[str(sysfs.root / "devices/faux/vgem")] == "vgem"
    assert by_path[str(sysfs.root / "devices/platform/vgem")] == str(sysfs.root / "devices/platform/vgem")


def test_addresses_stay_when_minors_are_swapped(tmp_path: Path) -> None:
    found = []
    for minors in ((0, 1), (1, 0)):
        sysfs = FakeSysfs(tmp_path / f"sys{minors[0]}")
        for path, sample, minor in zip(
            (IGPU, "devices/platform/vgem"), ("01 intel igpu", "15 vgem in 6.12"), minors, strict=True
        ):
            sysfs.add_device(path, SAMPLES[sample])
            sysfs.add_node(path, f"card{minor}", f"226:{minor}")
        found.append({device.address: numbers(device) for device in find(sysfs).devices})
    assert found == [{"0000:00:02.0": "226:0", "vgem": "226:1"}, {"0000:00:02.0": "226:1", "vgem": "226:0"}]


def test_a_device_being_removed(sysfs: FakeSysfs) -> None:
    sysfs.add_device(IGPU, SAMPLES["22 empty (device being removed)"], "pci")
    sysfs.add_node(IGPU, "card0", "226:0")
    sysfs.add_device("devices/platform/vgem", SAMPLES["15 vgem in 6.12"])
    home = sysfs.add_node("devices/platform/vgem", "card1", "226:1", [])
    (home / "dev").unlink()
    (sysfs.root / "class/drm/card2").symlink_to("../../devices/gone/drm/card2")
    inventory = find(sysfs)
    (device,) = inventory.devices
    assert (device.address, device.driver, device.vendor) == ("0000:00:02.0", None, None)
    assert [problem.partition(":")[0] for problem in inventory.problems] == ["card1", "card2", "0000"]


def test_attributes_that_fail_to_read(sysfs: FakeSysfs) -> None:
    device_path = sysfs.add_device(IGPU, [], numa_node="0")
    sysfs.add_node(IGPU, "card0", "226:0")
    (device_path / "numa_node").unlink()
    (device_path / "numa_node").symlink_to("/proc/self/mem")  # opens, then gives EIO
    (device_path / "uevent").unlink()
    (device_path / "uevent").mkdir()
    (device,) = find(sysfs).devices
    assert (device.driver, device.numa_node) == (None, None)


def test_links_in_a_circle_and_to_nowhere(sysfs: FakeSysfs) -> None:
    for name, target in (("card0", "device"), ("card1", "/nonexistent/0000:09:00.0")):
        home = sysfs.add_node(None, name, f"226:{name[-1]}")
        (home / "device").symlink_to(target)
    inventory = find(sysfs)
    assert [device.address for device in inventory.devices] == ["0000:09:00.0", "device"]
    assert len(inventory.problems) == 2


@pytest.mark.parametrize(
    "number", ["226", "226:", ":1", "4096:0", "226:1048576", "-1:0", "a:b", "1:2:3", "226:1 2", ""]
)
def test_numbers_that_are_none(sysfs: FakeSysfs, number: str) -> None:
    sysfs.add_node(None, "card0", number, [])
    inventory = find(sysfs)
    assert inventory.devices == ()
    assert len(inventory.problems) == 1 and inventory.problems[0].startswith("card0: ")


@pytest.mark.parametrize(("text", "node"), [("0", 0), ("3", 3), ("-1", None), ("-7", None), ("", None), ("x", None)])
def test_numa_node(sysfs: FakeSysfs, text: str, node: int | None) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], numa_node=text)
    sysfs.add_node(IGPU, "card0", "226:0")
    assert only(sysfs).numa_node == node


@pytest.mark.parametrize("missing", ["class", "class/drm", "class/accel"])
def test_missing_classes_are_fine(sysfs: FakeSysfs, missing: str) -> None:
    (sysfs.root / missing).parent.mkdir(exist_ok=True)
    assert find(sysfs) == Inventory((), ())


def test_no_sysfs_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SourceError) as caught:
        discover(tmp_path / "nowhere", TABLES)
    assert str(tmp_path) in caught.value.cause and caught.value.remedy


def test_parse_uevent_splits_at_the_first_equals_sign() -> None:
    assert parse_uevent("A=b=c\n\n=x\nnone\nB=\x0bc\x1cd\r\n") == {"A": "b=c", "B": "\x0bc\x1cd\r"}


@settings(deadline=None, max_examples=60)
@given(uevents=st.lists(st.binary(max_size=80), min_size=2, max_size=3), node_uevent=st.text(max_size=20))
def test_hostile_contents_never_crash_and_addresses_differ(uevents: list[bytes], node_uevent: str) -> None:
    with tempfile.TemporaryDirectory() as directory:
        sysfs = FakeSysfs(Path(directory))
        for number, uevent in enumerate(uevents):
            path = f"devices/bus{number}/same\udcff\x1b"
            sysfs.add_device(path, b"DRIVER=" + uevent + b"\nPCI_SLOT_NAME=0000:00:02.0\nPCI_ID=8086:5917\n")
            home = sysfs.add_node(path, f"card{number}", f"226:{number}")
            (home / "uevent").write_text(node_uevent, errors="replace")
        devices = find(sysfs).devices
    assert len({device.address for device in devices}) == len(devices) == len(uevents)
    for device in devices:
        assert all(text.encode() for text in (device.address, device.sysfs_path, device.driver or "-"))


def test_opens_only_harmless_attributes(sysfs: FakeSysfs) -> None:
    sysfs.add_device(IGPU, SAMPLES["01 intel igpu"], "pci", numa_node="0")
    for name in ("power", "config", "vendor", "current_link_speed"):
        (sysfs.root / IGPU / name).write_text("would wake the device\n")
    sysfs.add_node(IGPU, "card0", "226:0", [])
    program = f"""
import json, sys
from pathlib import Path
from kubenpu.cli import devices
from kubenpu.devices.discovery import discover
opened = []
sys.addaudithook(lambda event, args: opened.append(str(args[0])) if event == "open" else None)
found = discover(Path({str(sysfs.root)!r}), ())
print(json.dumps([len(found.devices), sorted(set(opened))]))
"""
    output = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, timeout=60).stdout
    found, opened = json.loads(output)
    home = sysfs.root / "class/drm/card0"
    device = sysfs.root / IGPU
    assert found == 1
    assert opened == sorted(
        str(path) for path in (home / "uevent", home / "dev", device / "uevent", device / "numa_node")
    )
