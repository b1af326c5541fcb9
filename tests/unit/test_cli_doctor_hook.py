# SPDX-License-Identifier: Apache-2.0
"""What doctor says of a hook that kubenpu-probe left off because there was no device for it then."""

from __future__ import annotations

from types import SimpleNamespace
from typing import cast

from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import FAIL, OK, Examination
from kubenpu.config.settings import Settings
from kubenpu.devices.discovery import Inventory
from kubenpu.devices.tables import load_tables
from kubenpu.kernel.pins import write_state
from kubenpu.model.device import Device, Node
from kubenpu.model.sample import HookStatus
from tests.unit.test_cli_doctor_checks import settings
from tests.unit.test_devices import FakeSysfs

__all__ = ["settings"]  # a fixture

HEAP, NPU = Node("dma_heap/system", 250, 0), Node("mynpu0", 240, 0)
DEVICE = Device("mynpu0", "char", None, "mynpu", None, None, (NPU,), "")
IDLE = HookStatus("file_ioctl", "off", "no such device", 1, needed=False)


def test_a_device_that_came_later_is_a_failure(settings: Settings) -> None:
    """Not a node that has no device of its own here."""
    write_state(settings.run_directory, (IDLE,), None)
    tables = load_tables(settings.run_directory)
    for nodes, status in (((HEAP,), OK), ((HEAP, NPU), FAIL)):
        inventory = Inventory((DEVICE,), (), dict.fromkeys(nodes))  # type: ignore[arg-type]
        found = SimpleNamespace(settings=settings, inventory=inventory, tables_in_force=tables)
        (finding,) = dict(CHECKS)["hook"](cast("Examination", found))
        assert (finding.check, finding.status) == ("hook file_ioctl", status)
    assert "reload kubenpu-probe" in finding.remedy


def test_a_device_with_calls_that_do_not_pass_drm_ioctl_is_such_a_device(settings: Settings) -> None:
    write_state(settings.run_directory, (IDLE,), None)
    for driver, status in (("i915", OK), ("nouveau", FAIL)):
        gpu = Device("0000:01:00.0", "drm", driver, driver, None, None, (Node("dri/card0", 226, 0),), "")
        inventory, tables = Inventory((gpu,), ()), load_tables(settings.run_directory)
        found = SimpleNamespace(settings=settings, inventory=inventory, tables_in_force=tables)
        (finding,) = dict(CHECKS)["hook"](cast("Examination", found))
        assert finding.status == status


EARLY = """
name = "npu9"
subsystem = "accel"
uevent_drivers = ["npu9"]
ioctl_type = 0x64
ioctl = [{ nr = 0x41, kind = "context", name = "NPU9_RUN", early = true }]
[[release]]
module = "npu9"
first = "2.0"
last = "2.9"
ioctl = [{ nr = 0x41, kind = "context", name = "NPU9_RUN" }]
[visibility]
submit = "partly"
"""


def test_the_release_that_is_loaded_says_whether_there_are_such_calls(settings: Settings) -> None:
    sysfs = FakeSysfs(settings.sysfs)
    sysfs.add_device("devices/platform/npu", ["DRIVER=npu9"])
    sysfs.add_node("devices/platform/npu", "accel0", "261:0")
    settings.drivers_directory.mkdir()
    (settings.drivers_directory / "npu9.toml").write_text(EARLY)
    write_state(settings.run_directory, (IDLE,), None)
    (finding,) = dict(CHECKS)["hook"](Examination(settings, ()))
    assert finding.status == FAIL
    (sysfs.root / "module/npu9").mkdir(parents=True)
    (sysfs.root / "module/npu9/version").write_text("2.1\n")
    (finding,) = dict(CHECKS)["hook"](Examination(settings, ()))
    assert finding.status == OK
