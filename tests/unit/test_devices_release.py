# SPDX-License-Identifier: Apache-2.0
"""A driver whose numbers depend on its release, in one that no table knows: it is named, and nothing is claimed."""

from __future__ import annotations

import json
import logging
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import OK, WARN, Examination, examine
from kubenpu.cli.main import main
from kubenpu.config.settings import parse_daemon_arguments, read_settings
from kubenpu.model.device import Visibility
from kubenpu.model.kinds import Kind
from kubenpu.service.inventory import read_inventory
from kubenpu.service.node import Node
from tests.fakes.node_world import World
from tests.unit.test_chardevs import GPU, Machine


def hailo(place: Path, version: str) -> Path:
    """The sysfs of a machine with a Hailo-8 and its driver in this release."""
    machine = Machine(place)
    module = machine.sysfs / "module/hailo_pci"
    module.mkdir(parents=True)
    (module / "version").write_text(f"{version}\n")
    machine.node("hailo0", "240:0", "hailo_chardev", machine.pci(GPU, "hailo", "48000", "1E60:2864"))
    return machine.sysfs


@pytest.mark.parametrize(("version", "known"), [("4.23.0", True), ("4.24.0", False), ("garbage", False), ("", False)])
def test_nothing_is_claimed(tmp_path: Path, version: str, known: bool) -> None:
    inventory = read_inventory(hailo(tmp_path, version), tmp_path / "none")
    table = inventory.tables.by_name("hailo")
    assert table is not None
    assert ("submit" in table.visibility) is known
    (commands,) = inventory.commands.values()
    assert any(Kind.SUBMIT in each.kinds for each in commands.tables) is known
    said = [text for level, text in inventory.troubles if level == logging.WARNING]
    assert said == ([] if known else [f"{inventory.tables.unknown_releases[0]}: its calls count as other"])


def test_the_node_shows_no_submissions(world: World, node: Node) -> None:
    sysfs = hailo(world.settings.sysfs.with_name("unknown"), "4.24.0")
    node.apply(replace(world.settings, sysfs=sysfs))
    node.rescan_devices()
    assert [device.vendor for device in node.view().devices] == ["hailo"]
    assert node.visibility("hailo") == {"device_time": Visibility.NEVER, "device_memory": Visibility.NEVER}
    assert "hailo" not in node.view().submit_vendors(node.visibility)


def test_the_list_of_devices_names_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sysfs = hailo(tmp_path, "4.24.0")
    assert main(["devices", "--json", "--sysfs", str(sysfs), "--drivers-dir", "/nonexistent"]) == 0
    printed = capsys.readouterr()
    (found,) = json.loads(printed.out)
    assert (found["vendor"], found["submit_visibility"], found["device_time_visibility"]) == ("hailo", None, "never")
    assert "the driver table does not know release '4.24.0' of hailo_pci" in printed.err


@pytest.mark.parametrize(("version", "statuses"), [("4.23.0", [OK]), ("4.24.0", [OK, WARN])])
def test_the_doctor_names_it(tmp_path: Path, version: str, statuses: list[str]) -> None:
    settings = replace(read_settings(parse_daemon_arguments(())), sysfs=hailo(tmp_path, version))
    found = examine(Examination(settings, ()), [each for each in CHECKS if each[0] == "devices"])
    assert [finding.status for finding in found] == statuses
    assert all(version in finding.found and str(settings.drivers_directory) in finding.remedy for finding in found[1:])
