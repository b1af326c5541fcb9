# SPDX-License-Identifier: Apache-2.0
"""From sysfs and driver tables to the kinds of calls per device: only what is there is read, in the release that is."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubenpu.model.kinds import Kind
from kubenpu.service.inventory import read_inventory
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


def test_a_device_without_table_has_the_cores_calls(sysfs: FakeSysfs, tmp_path: Path) -> None:
    kinds = read_inventory(sysfs.root, tmp_path).kinds
    assert kinds["npu"][0x09] == Kind.FREE
    assert set(kinds["npu"][0x40:0xA0]) == {Kind.OTHER}
