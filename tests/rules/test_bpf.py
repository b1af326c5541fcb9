# SPDX-License-Identifier: Apache-2.0
"""Rules for the kernel side: one stem per hook, shared structs stand once, with their size."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kubenpu.kernel import hooks, job_times, layout
from kubenpu.model.kinds import KINDS, Kind
from tests.rules.tree import ROOT, files, shown

HOOKS = files(".bpf.c", below="bpf")
HEADER = (ROOT / "bpf/drm_ioctl.h").read_text()
FILE_HEADER = (ROOT / "bpf/file_ioctl.h").read_text()


def defined(name: str, header: str = HEADER) -> int:
    found = re.search(rf"^#define {name} (\d+)\b", header, re.M)
    assert found, f"{name} is not a plain number in its header"
    return int(found[1])


@pytest.mark.parametrize("path", HOOKS, ids=shown)
def test_hook_has_its_header(path: Path) -> None:
    header = path.with_name(path.name.removesuffix(".bpf.c") + ".h")
    assert header.exists()


@pytest.mark.parametrize("path", HOOKS, ids=shown)
def test_every_shared_struct_has_its_size_asserted(path: Path) -> None:
    text = path.with_name(path.name.removesuffix(".bpf.c") + ".h").read_text()
    structs = set(re.findall(r"^struct (\w+) \{", text, re.M))
    assert structs
    assert structs - set(re.findall(r"_Static_assert\(sizeof\(struct (\w+)\) ==", text)) == set()


@pytest.mark.parametrize("path", HOOKS, ids=shown)
def test_hook_states_its_case(path: Path) -> None:
    """What it answers, what it costs, how it fails and what it cannot see, before any code."""
    comment = path.read_text().partition("*/")[0]
    assert [word for word in ("Hook -> question", "Cost:", "Fails", "Blind:") if word not in comment] == []


def test_numbers_agree_with_python() -> None:
    """BTF has no macros, so the check at start cannot compare these."""
    assert defined("KNPU_ABI") == layout.ABI
    assert defined("KNPU_KINDS") == layout.KINDS == len(KINDS)
    assert defined("KNPU_KIND_WAIT") == Kind.WAIT
    assert defined("KNPU_DEVICE_SLOTS") == layout.DEVICE_SLOTS
    limits = (defined("KNPU_ARGUMENTS"), defined("KNPU_VALUES"), defined("KNPU_NO_RESULT"))
    assert limits == (layout.ARGUMENTS, layout.VALUES, layout.NO_RESULT)
    assert (defined("KNPU_KIND_BITS"), defined("KNPU_WORK_MAX")) == (layout.KIND_BITS, layout.WORK_MAX)
    assert (defined("KNPU_DRM_MAJOR"), defined("KNPU_DRM_MINORS")) == (layout.DRM_MAJOR, layout.DRM_MINORS)
    assert (defined("KNPU_ACCEL_MAJOR"), defined("KNPU_ACCEL_MINORS")) == (layout.ACCEL_MAJOR, layout.ACCEL_MINORS)


def test_meanings_and_the_bit_of_the_hook_agree_with_python() -> None:
    body = HEADER.partition("enum knpu_meaning {")[2].partition("}")[0]
    assert tuple(name.lower() for name in re.findall(r"KNPU_SAYS_(\w+),", body)) == layout.MEANINGS
    assert defined("KNPU_HOOK", FILE_HEADER) == 1 << hooks.HOOKS.index(hooks.FILE_IOCTL)


def test_loss_reasons_agree_with_python() -> None:
    def reasons(enum: str, header: str = HEADER) -> tuple[str, ...]:
        body = header.partition(f"enum {enum} {{")[2].partition("}")[0]
        return tuple(name.lower() for name in re.findall(r"KNPU_LOST_(\w+),", body))

    assert reasons("knpu_device_loss") == layout.DEVICE_LOSSES
    assert reasons("knpu_loss") == layout.NODE_LOSSES
    scheduler = (ROOT / "bpf/scheduler.h").read_text()
    assert reasons("knpu_scheduler_loss", scheduler) == job_times.REASONS
    assert defined("KNPU_RING_NAME", scheduler) == layout.RING_NAME
