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
        found = SimpleNamespace(settings=settings, inventory=inventory, tables=tables)
        (finding,) = dict(CHECKS)["hook"](cast("Examination", found))
        assert (finding.check, finding.status) == ("hook file_ioctl", status)
    assert "reload kubenpu-probe" in finding.remedy


def test_a_device_with_calls_that_do_not_pass_drm_ioctl_is_such_a_device(settings: Settings) -> None:
    write_state(settings.run_directory, (IDLE,), None)
    for driver, status in (("i915", OK), ("nouveau", FAIL)):
        gpu = Device("0000:01:00.0", "drm", driver, driver, None, None, (Node("dri/card0", 226, 0),), "")
        inventory, tables = Inventory((gpu,), ()), load_tables(settings.run_directory)
        found = SimpleNamespace(settings=settings, inventory=inventory, tables=tables)
        (finding,) = dict(CHECKS)["hook"](cast("Examination", found))
        assert finding.status == status
