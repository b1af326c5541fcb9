# SPDX-License-Identifier: Apache-2.0
"""Driver tables: ours against the numbers printed from the kernel's headers, the operator's against the schema."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.devices.schema import CORE_NAME
from kubenpu.devices.tables import (
    LoadedTables,
    complete,
    load_heads,
    load_tables,
    match_table,
    rule_kinds,
)
from kubenpu.model.device import (
    DriverTable,
    Interface,
    IoctlRule,
    Release,
    Visibility,
)
from kubenpu.model.kinds import Kind

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


def nothing_loaded(_module: str) -> None:
    return None


def builtin(name: str) -> DriverTable:
    loaded = load_tables(NOWHERE)
    table = loaded.core if name == CORE_NAME else loaded.by_name(name)
    assert table is not None
    return table


def test_heads_are_the_tables_without_calls() -> None:
    whole, heads = load_tables(NOWHERE), load_heads(NOWHERE)
    assert heads.core == whole.core
    for table, head in zip(whole.tables, heads.tables, strict=True):
        bare = [replace(each, ioctls=(), releases=head_releases(each)) for each in table.interfaces]
        assert head == replace(table, interfaces=tuple(bare))
    names = {"nvidia", "habanalabs", None}
    completed = complete(heads, names, nothing_loaded)
    for table, found in zip(whole.tables, completed.tables, strict=True):
        assert (found == table) is (table.name in names or table == heads.by_name(table.name))


def head_releases(interface: Interface) -> tuple[Release, ...]:
    return tuple(replace(release, ioctls=()) for release in interface.releases)


def test_an_operators_table_is_whole_from_the_start(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD.replace('"npu9"', '"i915"'))
    heads = load_heads(tmp_path)
    assert heads.by_name("i915") == load_tables(tmp_path).by_name("i915")
    assert complete(heads, {"i915"}, nothing_loaded) == heads


@pytest.mark.parametrize(
    ("installed", "nr"),
    [
        ("4.18.0", 15),
        ("4.18.1", 15),
        ("4.23.0", 15),
        ("4.23", 15),
        ("4.20.0-rc1", 15),
        ("4.17.9", None),
        ("4.23.1", None),
        ("unknown", None),
        ("", None),
        (None, None),
    ],
)
def test_hailo_calls_are_those_of_the_loaded_release(installed: str | None, nr: int | None) -> None:
    table = loaded_as("hailo", installed)
    assert next((rule.nr for rule in table.interfaces[0].ioctls if rule.kind is Kind.SUBMIT), None) == nr
    assert table.visibility.get("submit") is (Visibility.ALWAYS if nr else None)
    assert table.visibility["device_time"] is Visibility.NEVER
    assert bool(table.unknown_release) is (nr is None)


def test_hailo1x_renumbered_between_releases() -> None:
    found = {
        version: [rule.nr for rule in loaded_as("hailo1x", version).interfaces[0].ioctls if rule.kind is Kind.SUBMIT]
        for version in ("5.2.0", "5.3.0", "5.4.0")
    }
    assert found == {"5.2.0": [13], "5.3.0": [12], "5.4.0": []}


@pytest.mark.parametrize(
    ("installed", "says"),
    [
        ("4.24.0", "hailo: the driver table does not know release '4.24.0' of hailo_pci"),
        ("\x1b[31m" + "9" * 90, f"hailo: the driver table does not know release '\\x1b[31m{'9' * 35}' of hailo_pci"),
        (None, "hailo: the driver table does not know hailo_pci without a version"),
    ],
)
def test_a_release_that_no_table_knows_is_told(installed: str | None, says: str) -> None:
    heads = load_heads(NOWHERE)
    assert complete(heads, {"hailo"}, {"hailo_pci": installed}.get).unknown_releases == (says,)
    assert complete(heads, {"i915"}, {"hailo_pci": installed}.get).unknown_releases == ()


def loaded_as(name: str, version: str | None) -> DriverTable:
    """The table while its module is loaded in this version."""
    table = complete(load_heads(NOWHERE), {name}, {f"{name}_pci": version}.get).by_name(name)
    assert table is not None
    return table


def test_rule_kinds_without_a_table_knows_the_core_only() -> None:
    core = builtin(CORE_NAME)
    kinds = rule_kinds(core, ())
    assert len(kinds) == 256
    assert kinds[0x09] == Kind.FREE
    assert kinds[0xC3] == Kind.WAIT
    assert set(kinds[0x40:0xA0]) == {Kind.OTHER}
    assert kinds[0xFF] == Kind.OTHER


def test_rule_kinds_of_i915() -> None:
    kinds = rule_kinds(builtin(CORE_NAME), builtin("i915").interfaces[0].ioctls)
    assert kinds[0x69] == Kind.SUBMIT
    assert kinds[0x5B] == kinds[0x7C] == Kind.ALLOC
    assert kinds[0x09] == Kind.FREE
    assert kinds[0x52] == Kind.OTHER


def test_rule_kinds_keeps_core_and_driver_apart() -> None:
    rules = tuple(IoctlRule("R", nr, Kind.SUBMIT, 0x64) for nr in range(256))
    from_driver = rule_kinds(builtin(CORE_NAME), rules)
    assert [nr for nr in range(256) if from_driver[nr] == Kind.SUBMIT] == list(range(0x40, 0xA0))
    every = replace(builtin(CORE_NAME), interfaces=(Interface("drm", (), (), (), (), rules, ()),))
    from_core = rule_kinds(every, ())
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
        ("drm", "drm", "drm", "tegra"),
        ("drm", "nvidia", "0001:1b:00.0", "nvidia"),
        ("accel", "nvidia", "0001:1b:00.0", None),
        ("accel", None, "rknn", "rocket"),
        ("drm", "RKNPU", "fdab0000.npu", "rknpu"),
        ("drm", "NovaCore", "nova_core.nova-drm.0", "nova-drm"),
    ],
)
def test_match(subsystem: str, driver: str | None, name: str, vendor: str | None) -> None:
    table = match_table(load_tables(NOWHERE).tables, subsystem, driver, name)
    assert (table.name if table else None) == vendor


def calls(loaded: LoadedTables, name: str) -> tuple[IoctlRule, ...]:
    table = loaded.by_name(name)
    assert table is not None
    return table.interfaces[0].ioctls


def test_an_operators_file_adds_a_table(tmp_path: Path) -> None:
    (tmp_path / "npu9.toml").write_text(GOOD)
    loaded = load_tables(tmp_path)
    assert loaded.errors == ()
    table = loaded.by_name("npu9")
    assert table is not None
    assert table.source == str(tmp_path / "npu9.toml")
    assert rule_kinds(loaded.core, table.interfaces[0].ioctls)[0x41] == Kind.SUBMIT
    assert match_table(loaded.tables, "accel", "npu9", "0000:01:00.0") == table


def test_an_operators_file_replaces_ours_by_name_and_comes_first(tmp_path: Path) -> None:
    mine = GOOD.replace("accel", "drm").replace('["npu9"]', '["i915"]')
    (tmp_path / "a.toml").write_text(mine.replace('"npu9"', '"i915"'))
    loaded = load_tables(tmp_path)
    assert [rule.name for rule in calls(loaded, "i915")] == ["NPU9_RUN"]
    (tmp_path / "a.toml").write_text(mine)
    found = match_table(load_tables(tmp_path).tables, "drm", "i915", "0000:00:02.0")
    assert found is not None and found.name == "npu9"


def test_the_later_of_two_files_wins(tmp_path: Path) -> None:
    (tmp_path / "10.toml").write_text(GOOD)
    (tmp_path / "20.toml").write_text(GOOD.replace("NPU9_RUN", "LATER"))
    assert [rule.name for rule in calls(load_tables(tmp_path), "npu9")] == ["LATER"]


def test_the_core_can_be_replaced(tmp_path: Path) -> None:
    text = GOOD.replace('"npu9"', '"drm"', 1).replace("0x41", "0x09")
    (tmp_path / "core.toml").write_text(text)
    loaded = load_tables(tmp_path)
    assert loaded.errors == ()
    assert rule_kinds(loaded.core, ())[0x09] == Kind.SUBMIT
    assert loaded.by_name("drm") is None


def test_bad_files_are_named_and_take_nothing_else_down(tmp_path: Path) -> None:
    (tmp_path / "good.toml").write_text(GOOD)
    (tmp_path / "syntax.toml").write_text("name = \n")
    (tmp_path / "latin.toml").write_bytes(b'name = "\xe9"')
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    (tmp_path / "large.toml").write_text("#" * (1 << 18) + "\n")
    (tmp_path / "folder.toml").mkdir()
    os.mkfifo(tmp_path / "pipe.toml")
    (tmp_path / "gone.toml").symlink_to("nowhere")
    (tmp_path / ".hidden.toml").write_text("nonsense")
    (tmp_path / "README").write_text("nonsense")
    loaded = load_tables(tmp_path)
    assert loaded.by_name("npu9") is not None
    assert len(loaded.tables) == len(load_tables(NOWHERE).tables) + 1
    bad = ["deep", "folder", "gone", "large", "latin", "pipe", "syntax"]
    assert [error.cause.partition(":")[0] for error in loaded.errors] == [f"{tmp_path}/{name}.toml" for name in bad]
    assert "line 1, column 8" in loaded.errors[-1].cause
    assert all(error.remedy for error in loaded.errors)


def test_a_directory_that_is_none_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    assert [str(tmp_path) in error.cause for error in load_tables(tmp_path / "file").errors] == [True]


# ---- what is not wrong and yet may surprise ----


def test_nothing_to_say_of_our_own_tables(tmp_path: Path) -> None:
    assert load_tables(tmp_path).notes == ()


def test_two_files_of_one_name(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text(GOOD)
    (tmp_path / "b.toml").write_text(GOOD)
    loaded = load_tables(tmp_path)
    assert loaded.notes == (f"{tmp_path}/b.toml replaces the table npu9 of {tmp_path}/a.toml",)
    table = loaded.by_name("npu9")
    assert table is not None
    assert table.source == f"{tmp_path}/b.toml"


def test_a_table_of_ours_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD.replace('"npu9"', '"amdxdna"'))
    (note,) = load_tables(tmp_path).notes
    assert note == f"{tmp_path}/mine.toml replaces the table amdxdna of kubenpu/devices/drivers/amdxdna.toml"


def test_two_tables_for_one_driver(tmp_path: Path) -> None:
    (tmp_path / "mine.toml").write_text(GOOD.replace('["npu9"]', '["amdxdna"]'))
    (note,) = load_tables(tmp_path).notes
    assert note.startswith(f"amdxdna: table npu9 of {tmp_path}/mine.toml comes before amdxdna of ")


@pytest.mark.parametrize("name", ["npu9.TOML", "npu9.toml.bak", ".npu9.toml", "npu9"])
def test_files_that_are_not_looked_at(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_text("rubbish")
    loaded = load_tables(tmp_path)
    assert loaded.errors == ()
    assert loaded.notes == (f"{tmp_path}/{name} is ignored: a driver table is called NAME.toml",)


def test_a_directory_that_was_asked_for_and_is_not_there(tmp_path: Path) -> None:
    assert load_tables(tmp_path / "none").notes == (f"{tmp_path}/none does not exist",)
