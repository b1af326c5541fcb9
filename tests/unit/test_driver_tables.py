# SPDX-License-Identifier: Apache-2.0
"""Driver tables: ours against the numbers printed from the kernel's headers, the operator's against the schema."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.devices.schema import CORE_NAME, parse_table
from kubenpu.devices.tables import load_tables, match_table, rule_kinds
from kubenpu.model.device import DriverTable, IoctlRule, Visibility
from kubenpu.model.errors import ConfigError
from kubenpu.model.kinds import Kind

FACTS = json.loads((Path(__file__).parents[1] / "fixtures" / "ioctls.json").read_text())["drivers"]
# Our table, and how the facts call that driver.
FACT_NAMES = {
    "drm": "(drm core)",
    "i915": "i915",
    "xe": "xe",
    "amdgpu": "amdgpu",
    "intel_vpu": "intel_vpu",
    "amdxdna": "amdxdna",
    "virtio_gpu": "virtio-pci",
    "vgem": "vgem",
}
NOWHERE = Path("/nonexistent/drivers.d")
GOOD = """
name = "npu9"
subsystem = "accel"
uevent_drivers = ["npu9"]
ioctl_type = 0x64
ioctl = [{ nr = 0x41, kind = "submit", name = "NPU9_RUN" }]
[visibility]
submit = "always"
"""


def facts_of(name: str) -> dict[str, Any]:
    wanted = FACT_NAMES[name]
    return next(fact for fact in FACTS if fact["driver"] == wanted and fact.get("ioctl_type_value") == 0x64)


def builtin(name: str) -> DriverTable:
    loaded = load_tables(NOWHERE)
    table = loaded.core if name == CORE_NAME else loaded.by_name(name)
    assert table is not None
    return table


def test_the_shipped_tables_are_these() -> None:
    loaded = load_tables(NOWHERE)
    assert {loaded.core.name, *(table.name for table in loaded.tables)} == set(FACT_NAMES)
    assert loaded.errors == ()


@pytest.mark.parametrize("name", FACT_NAMES)
def test_every_number_and_kind_is_the_headers(name: str) -> None:
    table = builtin(name)
    expected: dict[int, set[str]] = {}
    names: dict[int, set[str]] = {}
    for call in facts_of(name)["ioctls"]:
        expected.setdefault(call["nr"], set()).add("other" if call["kind"] == "query" else call["kind"])
        if call["handler_7_3"] != "absent":
            names.setdefault(call["nr"], set()).add(call["name"])
    assert {rule.nr: {rule.kind.label} for rule in table.ioctls} == expected
    assert {rule.nr: {rule.name} for rule in table.ioctls} == names
    assert len(table.ioctls) == len(expected)
    assert table.ioctl_type == facts_of(name)["ioctl_type_value"]


@pytest.mark.parametrize("name", FACT_NAMES)
def test_identity_and_visibility_agree_with_the_facts(name: str) -> None:
    table = builtin(name)
    fact = facts_of(name)
    assert table.subsystem == fact["subsystem"]
    drivers = {driver for driver in fact["uevent_driver"] if not driver.startswith("(")} - {"faux_driver (7.3)"}
    assert drivers <= set(table.uevent_drivers)
    if name != CORE_NAME:
        partly = fact["usermode_submission"]["possible"]
        assert table.visibility is (Visibility.PARTLY if partly else Visibility.ALWAYS)
    assert table.visibility_note


def test_rule_kinds_without_a_table_knows_the_core_only() -> None:
    core = builtin(CORE_NAME)
    kinds = rule_kinds(core, None)
    assert len(kinds) == 256
    assert kinds[0x09] == Kind.FREE
    assert kinds[0xC3] == Kind.WAIT
    assert set(kinds[0x40:0xA0]) == {Kind.OTHER}
    assert kinds[0xFF] == Kind.OTHER


def test_rule_kinds_of_i915() -> None:
    kinds = rule_kinds(builtin(CORE_NAME), builtin("i915"))
    assert kinds[0x69] == Kind.SUBMIT
    assert kinds[0x5B] == kinds[0x7C] == Kind.ALLOC
    assert kinds[0x09] == Kind.FREE
    assert kinds[0x52] == Kind.OTHER


def test_rule_kinds_keeps_core_and_driver_apart() -> None:
    rules = tuple(IoctlRule("R", nr, Kind.SUBMIT) for nr in range(256))
    every = DriverTable("x", "drm", ("x",), (), 0x64, Visibility.ALWAYS, "", rules, "test")
    from_driver = rule_kinds(builtin(CORE_NAME), every)
    assert [nr for nr in range(256) if from_driver[nr] == Kind.SUBMIT] == list(range(0x40, 0xA0))
    from_core = rule_kinds(every, None)
    assert [nr for nr in range(256) if from_core[nr] != Kind.SUBMIT] == list(range(0x40, 0xA0))


@pytest.mark.parametrize(
    ("subsystem", "driver", "name", "vendor"),
    [
        ("drm", "i915", "0000:00:02.0", "i915"),
        ("accel", "i915", "0000:00:02.0", None),
        ("accel", "intel_vpu", "0000:00:0b.0", "intel_vpu"),
        ("accel", "ivpu", "0000:00:0b.0", None),
        ("accel", "amdxdna", "0000:c5:00.1", "amdxdna"),
        ("drm", "virtio-pci", "0000:00:10.0", "virtio_gpu"),
        ("drm", "virtio-mmio", "a003e00.virtio_mmio", "virtio_gpu"),
        ("drm", None, "vgem", "vgem"),
        ("drm", "faux_driver", "vgem", "vgem"),
        ("drm", "faux_driver", "vkms", None),
        ("drm", None, "amdgpu_xcp_12", "amdgpu"),
        ("drm", None, "amdgpu", None),
        ("drm", "", "x", None),
    ],
)
def test_match(subsystem: str, driver: str | None, name: str, vendor: str | None) -> None:
    table = match_table(load_tables(NOWHERE).tables, subsystem, driver, name)
    assert (table.name if table else None) == vendor


def test_an_operators_file_adds_a_table(tmp_path: Path) -> None:
    (tmp_path / "npu9.toml").write_text(GOOD)
    loaded = load_tables(tmp_path)
    assert loaded.errors == ()
    table = loaded.by_name("npu9")
    assert table is not None
    assert table.source == str(tmp_path / "npu9.toml")
    assert rule_kinds(loaded.core, table)[0x41] == Kind.SUBMIT
    assert match_table(loaded.tables, "accel", "npu9", "0000:01:00.0") == table


def test_an_operators_file_replaces_ours_by_name_and_comes_first(tmp_path: Path) -> None:
    mine = GOOD.replace("accel", "drm").replace('["npu9"]', '["i915"]')
    (tmp_path / "a.toml").write_text(mine.replace('"npu9"', '"i915"'))
    loaded = load_tables(tmp_path)
    assert [rule.name for table in loaded.tables if table.name == "i915" for rule in table.ioctls] == ["NPU9_RUN"]
    (tmp_path / "a.toml").write_text(mine)
    found = match_table(load_tables(tmp_path).tables, "drm", "i915", "0000:00:02.0")
    assert found is not None and found.name == "npu9"


def test_the_later_of_two_files_wins(tmp_path: Path) -> None:
    (tmp_path / "10.toml").write_text(GOOD)
    (tmp_path / "20.toml").write_text(GOOD.replace("NPU9_RUN", "LATER"))
    table = load_tables(tmp_path).by_name("npu9")
    assert table is not None and table.ioctls[0].name == "LATER"


def test_the_core_can_be_replaced(tmp_path: Path) -> None:
    text = GOOD.replace('"npu9"', '"drm"', 1).replace("0x41", "0x09")
    (tmp_path / "core.toml").write_text(text)
    loaded = load_tables(tmp_path)
    assert loaded.errors == ()
    assert rule_kinds(loaded.core, None)[0x09] == Kind.SUBMIT
    assert loaded.by_name("drm") is None


def test_bad_files_are_named_and_take_nothing_else_down(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "syntax.toml").write_text("name = \n")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    (tmp_path / "large.toml").write_text("#" * (1 << 20) + "\n")
    (tmp_path / "folder.toml").mkdir()
    (tmp_path / "gone.toml").symlink_to("nowhere")
    (tmp_path / ".hidden.toml").write_text("nonsense")
    (tmp_path / "README").write_text("nonsense")
    loaded = load_tables(tmp_path)
    assert loaded.by_name("npu9") is not None
    assert len(loaded.tables) == len(FACT_NAMES)
    bad = ["deep", "folder", "gone", "large", "latin", "syntax"]
    assert [error.cause.partition(":")[0] for error in loaded.errors] == [f"{tmp_path}/{name}.toml" for name in bad]
    assert "line 1, column 8" in loaded.errors[-1].cause
    assert all(error.remedy for error in loaded.errors)


def test_a_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [str(tmp_path) in error.cause for error in load_tables(tmp_path / "file").errors] == [True]


@pytest.mark.parametrize(
    ("old", "new", "says"),
    [
        ('name = "npu9"', "", "name is missing"),
        ('name = "npu9"', 'name = "-"', "name is '-'"),
        ('name = "npu9"', 'name = "a\\u001b[31m"', r"name is 'a\x1b[31m'"),
        ('"accel"', '"block"', "subsystem is 'block'"),
        ('["npu9"]', '"npu9"', "uevent_drivers is 'npu9'"),
        ('["npu9"]', "[1]", "uevent_drivers is 1"),
        ('["npu9"]', "[]", "uevent_drivers is []"),
        ("ioctl_type = 0x64", "ioctl_type = 256", "ioctl_type is 256"),
        ("ioctl_type = 0x64", "ioctl_type = 0x48", "ioctl_type is 72"),
        ("ioctl_type = 0x64", 'ioctl_type = "d"', "ioctl_type is 'd'"),
        ("nr = 0x41", "nr = 256", "ioctl[0].nr is 256"),
        ("nr = 0x41", "nr = -1", "ioctl[0].nr is -1"),
        ("nr = 0x41", "nr = true", "ioctl[0].nr is True"),
        ("nr = 0x41", "nr = 0x01", "nr of NPU9_RUN is '0x01'"),
        ("nr = 0x41", f"nr = 0x{'f' * 9000}", "ioctl[0].nr is too long a number"),
        ("nr = 0x41", f"nr = {'9' * 9000}", "not valid TOML"),
        ('"submit",', '"query",', "ioctl[0].kind is 'query'"),
        ('"NPU9_RUN"', '"two words"', "ioctl[0].name is 'two words'"),
        ('name = "NPU9_RUN"', "", "not valid TOML"),
        (', name = "NPU9_RUN"', "", "ioctl[0].name is missing"),
        ("nr = 0x41", "nr = 0x41, size = 4", "unknown key 'ioctl[0].size'"),
        ('submit = "always"', 'submit = "often"', "visibility.submit is 'often'"),
        ('submit = "always"', 'submit = "always"\nhow = 1', "unknown key 'visibility.how'"),
        ('name = "npu9"', 'name = "npu9"\ncolour = 1', "unknown key 'colour'"),
        ("[{ nr", "[7, { nr", "ioctl[0] is 7"),
        (
            '"NPU9_RUN" }',
            '"NPU9_RUN" }, { nr = 0x41, kind = "wait", name = "B" }',
            "B and NPU9_RUN have the same nr 0x41",
        ),
    ],
)
def test_refusals_name_file_and_key(old: str, new: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_table(GOOD.replace(old, new, 1), "/etc/x.toml")
    assert caught.value.cause.startswith("/etc/x.toml: ")
    assert says in caught.value.cause
    assert caught.value.remedy
    assert str(caught.value).isprintable()


def test_two_names_for_one_number_are_fine() -> None:
    text = GOOD.replace('"NPU9_RUN" }', '"NPU9_RUN" }, { nr = 0x41, kind = "submit", name = "NPU9_RUN_WR" }')
    assert [rule.nr for rule in parse_table(text, "x").ioctls] == [0x41, 0x41]


@given(st.text(), st.integers(0, len(GOOD)), st.integers(0, 20))
def test_any_text_gives_a_table_or_a_config_error(noise: str, at: int, cut: int) -> None:
    text = GOOD[:at] + noise + GOOD[at + cut :]
    try:
        table = parse_table(text, "x.toml")
    except ConfigError as error:
        assert error.cause.startswith("x.toml: ")
    else:
        assert all(0x40 <= rule.nr < 0xA0 for rule in table.ioctls) or table.name == CORE_NAME
