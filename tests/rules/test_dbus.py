# SPDX-License-Identifier: Apache-2.0
"""What D-Bus, polkit and systemd are told of the interface is what api/dbus.py declares."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

from kubenpu.api import dbus as api
from kubenpu.api.fields import MAX_ROWS
from tests.rules.tree import ROOT

POLICY = ET.parse(ROOT / "systemd/dbus/io.kubenpu.conf").getroot()
ACTIONS = ET.parse(ROOT / "systemd/polkit/io.kubenpu.policy").getroot()
DECLARED = {
    (interface.name, method.name) for interface in (*api.OF_NODE, *api.OF_DEVICE) for method in interface.methods
}


def rules(*policy: tuple[str, str]) -> list[tuple[str, dict[str, str]]]:
    (found,) = (each for each in POLICY.findall("policy") if each.attrib == dict(policy))
    return [(rule.tag, dict(rule.attrib)) for rule in found]


def test_every_method_is_let_through_by_name() -> None:
    allowed = rules(("context", "default"))
    assert {tag for tag, _ in allowed} == {"allow"}
    assert {rule.pop("send_destination") for _, rule in allowed} == {api.NAME}
    assert {(rule.pop("send_interface"), rule.pop("send_member")) for _, rule in allowed} == DECLARED
    assert not any(rule for _, rule in allowed)


def test_only_root_owns_the_name() -> None:
    assert len(POLICY.findall("policy")) == 2
    assert ("allow", {"own": api.NAME}) in rules(("user", "root"))


def test_every_right_has_its_action_and_the_default_is_no() -> None:
    needed = {method.action for method in api.NODE.methods if method.action}
    assert {action.attrib["id"] for action in ACTIONS.findall("action")} == needed
    for action in ACTIONS.findall("action"):
        assert {(default.text or "").startswith("auth_admin") for default in action.findall("defaults/*")} == {True}


def test_only_what_changes_something_needs_a_right() -> None:
    assert {method.name for method in api.NODE.methods if method.action} == {"Reload"}


def test_activation_starts_the_enabled_unit_only() -> None:
    file = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "systemd/dbus/io.kubenpu.service").read_text(), re.M))
    assert file["Name"] == api.NAME
    assert f"\nAlias={file['SystemdService']}\n" in (ROOT / "systemd/kubenpud.service").read_text()


def test_architecture_tells_the_limit() -> None:
    assert f"at most {MAX_ROWS} rows" in (ROOT / "ARCHITECTURE.md").read_text()
