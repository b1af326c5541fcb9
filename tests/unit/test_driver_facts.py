# SPDX-License-Identifier: Apache-2.0
"""Our driver tables against the facts on every driver and against the numbers printed from the kernel's headers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kubenpu.devices.schema import CHAR, CORE_NAME, SUBSYSTEMS, parse_table
from kubenpu.devices.tables import load_tables
from kubenpu.model.device import (
    Argument,
    CountField,
    Envelope,
    GpuField,
    Interface,
    IoctlRule,
    KindField,
    Visibility,
)
from kubenpu.model.kinds import Kind
from tests.integration.kernel_headers import Numbers, complaints, fixture
from tests.unit.test_driver_tables import GOOD, NOWHERE, builtin

FACTS = json.loads((Path(__file__).parents[1] / "fixtures" / "ioctls.json").read_text())["drivers"]
# How we call a driver that the facts call otherwise; KFD is one of two with the same name there.
TABLE_NAMES = {
    "(drm core)": "drm",
    "RKNPU": "rknpu",
    "devdrv_device_driver": "ascend",
    "exynos-drm": "exynos",
    "neuron-driver": "neuron",
    "qcom,fastrpc": "fastrpc",
    "vc4-drm": "vc4",
    "virtio-pci": "virtio_gpu",
}
# Numbers of ours that the facts do not have: from the header, or said there in a note.
MORE_CALLS = {
    "vfio-pci": {(0x3B, nr) for nr in (0x70, 0x71, 0x72, 0x73, 0x74, 0x75)},
    "tyr": {(0x64, nr) for nr in range(0x41, 0x51)},
    "hailo1x": {(0x76, 0x0D)},
    "nouveau": {(0x64, 0x47)},
}


def table_name(fact: dict[str, Any]) -> str:
    return "amdkfd" if fact["subsystem"] == "kfd" else TABLE_NAMES.get(fact["driver"], fact["driver"])


def subsystem(fact: dict[str, Any]) -> str:
    return fact["subsystem"] if fact["subsystem"] in SUBSYSTEMS else CHAR


def fact_id(fact: dict[str, Any]) -> str:
    return f"{table_name(fact)}-{subsystem(fact)}"


def interfaces_of(fact: dict[str, Any]) -> list[Interface]:
    return [each for each in builtin(table_name(fact)).interfaces if each.subsystem == subsystem(fact)]


def rules_of(fact: dict[str, Any]) -> list[IoctlRule]:
    return [
        rule
        for interface in interfaces_of(fact)
        for rules in (interface.ioctls, *(release.ioctls for release in interface.releases))
        for rule in rules
    ]


def argument_of(fact: dict[str, Any], name: str) -> Argument | None:
    return next(rule.argument for rule in rules_of(fact) if rule.name == name)


def places(key: str) -> list[tuple[dict[str, Any], dict[str, Any]]]:
    """Facts on a place inside an argument, with their driver."""
    return [(fact, call) for fact in FACTS for call in fact["ioctls"] if key in call]


def test_of_a_driver_that_says_how_much_it_submits_every_submission_does() -> None:
    """Else its work would be that of some of its submissions."""
    for table in load_tables(NOWHERE).tables:
        submits = [
            rule
            for interface in table.interfaces
            for rule in interface.ioctls
            if interface.subsystem != CHAR and rule.kind is Kind.SUBMIT
        ]
        counts = [rule.name for rule in submits if isinstance(rule.argument, CountField)]
        assert counts == ([rule.name for rule in submits] if table.work else []), table.name


def smallest(call: dict[str, Any]) -> int:
    return int(min([call["struct_size"], *call.get("struct_size_by_kernel", {}).values()]))


def test_the_shipped_tables_are_these() -> None:
    loaded = load_tables(NOWHERE)
    assert {loaded.core.name, *(table.name for table in loaded.tables)} == {table_name(fact) for fact in FACTS}
    assert loaded.errors == ()


@pytest.mark.parametrize("fact", FACTS, ids=fact_id)
def test_every_number_name_and_kind_is_that_of_the_facts(fact: dict[str, Any]) -> None:
    kinds: dict[tuple[int, int], set[str]] = {}
    names: dict[tuple[int, int], set[str]] = {}
    for call in fact["ioctls"]:
        number = (call.get("type", fact["ioctl_type_value"]), call["nr"])
        kinds.setdefault(number, set()).add("other" if call["kind"] == "query" else call["kind"])
        if call.get("handler_7_3") != "absent":
            names.setdefault(number, set()).add(call["name"])
    more = MORE_CALLS.get(table_name(fact), set())
    found = [rule for rule in rules_of(fact) if (rule.type, rule.nr) not in more - kinds.keys()]
    if table_name(fact) == "vfio-pci":  # container and device calls share numbers: only one of the two is in the facts
        found = [rule for rule in found if rule.name in {name for each in names.values() for name in each}]
    if table_name(fact) == "hailo1x":
        found = list(interfaces_of(fact)[0].releases[-1].ioctls)
    assert {number: {r.kind.label for r in found if (r.type, r.nr) == number} for number in kinds} == kinds
    assert {number: {r.name for r in found if (r.type, r.nr) == number} for number in names} == names
    assert {(rule.type, rule.nr) for rule in found} == kinds.keys()


@pytest.mark.parametrize("fact", FACTS, ids=fact_id)
def test_the_whole_command_decides_only_where_the_facts_have_one(fact: dict[str, Any]) -> None:
    commands = {call["name"]: call.get("cmd") for call in fact["ioctls"]}
    assert {rule.cmd for rule in rules_of(fact)} == set(commands.values())
    assert all(rule.cmd in {None, commands.get(rule.name)} for rule in rules_of(fact))


@pytest.mark.parametrize("fact", FACTS, ids=fact_id)
def test_identity_and_visibility_agree_with_the_facts(fact: dict[str, Any]) -> None:
    table = builtin(table_name(fact))
    for driver in fact["uevent_driver"]:
        word = driver.partition(" (")[0]
        named = [interface for interface in interfaces_of(fact) if word in interface.uevent_drivers]
        # faux_driver is everybody's; the parent's name decides there
        assert named or driver.startswith("(") or word == "faux_driver" or interfaces_of(fact)[0].sysfs_names
    if fact["drm_name"] is not None:
        assert fact["drm_name"].partition(" (")[0] in interfaces_of(fact)[0].drm_names
    if table.name != CORE_NAME:
        others = fact.get("usermode_submission", {}).get("possible", False)
        submits = any(each["submit"] for each in FACTS if table_name(each) == table.name)
        told = {
            (False, True): Visibility.ALWAYS,
            (True, True): Visibility.PARTLY,
            (True, False): Visibility.NEVER,
            (False, False): Visibility.NONE,
        }
        assert table.visibility["submit"] is told[others, submits]
        assert table.hardware
    assert table.visibility_note


@pytest.mark.parametrize(("fact", "call"), places("count_field"), ids=lambda each: each.get("name"))
def test_counts_are_read_where_the_facts_say(fact: dict[str, Any], call: dict[str, Any]) -> None:
    argument = argument_of(fact, call["name"])
    if call["name"] == "DRM_IOCTL_AMDXDNA_EXEC_CMD":  # always 1: the driver takes no other
        assert argument is None
        return
    place = call["count_field"]
    assert isinstance(argument, CountField)
    assert (argument.offset, argument.width, argument.size) == (place["offset"], place["bytes"], smallest(call))


@pytest.mark.parametrize(("fact", "call"), places("gpu_id_field"), ids=lambda each: each.get("name"))
def test_gpus_are_read_where_the_facts_say(fact: dict[str, Any], call: dict[str, Any]) -> None:
    argument = argument_of(fact, call["name"])
    place = call["gpu_id_field"]
    assert argument == GpuField(smallest(call), place["offset"], place["bytes"], "gpu_id")


@pytest.mark.parametrize(("fact", "call"), places("selector"), ids=lambda each: each.get("name"))
def test_kinds_in_arguments_are_those_of_the_facts(fact: dict[str, Any], call: dict[str, Any]) -> None:
    wanted = {int(value): kind.partition(" ")[0] for value, kind in call["selector"]["values"].items()}
    argument = argument_of(fact, call["name"])
    (kind,) = {rule.kind.label for rule in rules_of(fact) if rule.name == call["name"]}
    if argument is None:  # one kind whatever the value
        assert set(wanted.values()) == {kind}
        return
    assert isinstance(argument, KindField)
    assert (argument.offset, argument.width) == (call["selector"]["offset"], call["selector"]["bytes"])
    found = {value: argument.kinds[value].label if value in argument.kinds else kind for value in wanted}
    assert found == {value: "other" if each == "query" else each for value, each in wanted.items()}


def test_the_arguments_of_nvidia_are_those_of_the_facts() -> None:
    fact = next(each for each in FACTS if "object_field" in each)
    objects, heap = (argument_of(fact, fact[key]["for"]) for key in ("object_field", "heap_field"))
    assert isinstance(objects, KindField) and isinstance(heap, KindField)
    classes = {int(number, 16): kind for kind, numbers in fact["object_field"]["classes"].items() for number in numbers}
    context = Kind.CONTEXT.label  # what all classes are that are no memory
    assert {number: objects.kinds.get(number, Kind.CONTEXT).label for number in classes} == {
        number: kind if kind in {"alloc", "map"} else context for number, kind in classes.items()
    }
    assert {str(value): kind.label for value, kind in heap.kinds.items()} == {
        value: "other" if kind == "query" else kind for value, kind in fact["heap_field"]["values"].items()
    }
    control = argument_of(fact, fact["control_field"]["for"])
    assert isinstance(control, KindField)
    assert {f"{value:#x}" for value in control.kinds} <= fact["control_field"]["worth_knowing"].keys()
    for field, argument in (("object_field", objects), ("heap_field", heap), ("control_field", control)):
        assert (argument.offset, argument.width) == (fact[field]["offset"], fact[field]["bytes"])
    assert argument_of(fact, "NV_ESC_IOCTL_XFER_CMD") == Envelope(16, 0, 4, length=4, pointer=8)


@pytest.mark.parametrize(
    ("version", "headers"), fixture().items(), ids=lambda each: each if isinstance(each, str) else ""
)
def test_no_call_of_a_kernel_header_is_left_out(version: str, headers: dict[str, Numbers]) -> None:
    loaded = load_tables(NOWHERE)
    assert complaints((loaded.core, *loaded.tables), headers) == [], version


def test_a_call_that_a_header_has_and_no_table_is_printed() -> None:
    table = parse_table(GOOD.replace('"npu9"', '"vgem"').replace("NPU9_RUN", "DRM_IOCTL_VGEM_A"), "x")
    numbers = {"DRM_IOCTL_VGEM_A": (0x64, 0x42, 8), "DRM_IOCTL_VGEM_B": (0x64, 0x43, 8)}
    assert complaints([table], {"drm/vgem_drm.h": numbers}) == [
        "drm/vgem_drm.h: DRM_IOCTL_VGEM_A is (0x64, 0x42)",
        "drm/vgem_drm.h: DRM_IOCTL_VGEM_B (0x64, 0x43) has no entry in vgem.toml",
    ]


# What a driver prints in fdinfo, in kernels 6.1 to 7.3: time, memory. Of no other it is known that it prints either.
TELL = {
    "amdgpu": ("partly", "always"),
    "amdxdna": ("never", "partly"),
    "etnaviv": ("partly", "partly"),
    "i915": ("always", "partly"),
    "intel_vpu": ("never", "partly"),
    "msm": ("always", "partly"),
    "panfrost": ("partly", "partly"),
    "panthor": ("partly", "partly"),
    "v3d": ("partly", "partly"),
    "xe": ("partly", "always"),
}


# Drivers that give the client with each job and whose rings work on one at a time, with the driver of the scheduler's
# device, as read in 7.3. Not amdxdna, nouveau, powervr: they have a scheduler for each queue, whose jobs wait in the
# firmware for those of others.
SCHEDULED = {"ethosu": "ethosu", "etnaviv": "etnaviv-gpu", "lima": "lima", "rocket": "rocket"}


def test_whose_time_the_scheduler_tells() -> None:
    """Partly: since Linux 6.17."""
    tables = load_tables(Path("/nonexistent")).tables
    assert {table.name: table.scheduled for table in tables if table.scheduled} == {
        name: (driver,) for name, driver in SCHEDULED.items()
    }
    for table in tables:
        if table.scheduled:
            assert table.visibility["device_time"] is Visibility.PARTLY


def test_who_tells_time_and_memory_of_its_clients() -> None:
    told = {}
    for table in load_tables(Path("/nonexistent")).tables:
        seen = tuple(found.value for what in ("device_time", "device_memory") if (found := table.visibility.get(what)))
        if set(seen) - {"never"}:
            told[table.name] = seen
        elif all(interface.subsystem == "char" for interface in table.interfaces):
            assert seen == ("never", "never"), f"{table.name}: fdinfo is read of DRM and accel devices only"
    assert told == {**dict.fromkeys(SCHEDULED, ("partly", "never")), **TELL}
