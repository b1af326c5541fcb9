# SPDX-License-Identifier: Apache-2.0
"""The layout check must notice every difference, and rule_index() must stay inside the map."""

from __future__ import annotations

import ctypes

import pytest

from kubenpu.kernel import layout
from kubenpu.kernel.layout import STRUCTS as BY_HOOK
from kubenpu.kernel.layout import differences as differences_of
from kubenpu.kernel.layout import members_of, rule_index
from kubenpu.kernel.store import LOSS_REASONS
from kubenpu.model.kinds import KINDS

Found = dict[str, tuple[int, dict[str, int]] | None]
HOOK = "file_ioctl"  # its object holds all structs
STRUCTS = BY_HOOK[HOOK]


def differences(found: Found) -> list[str]:
    return differences_of(found, HOOK)


def test_every_hook_has_the_structs_of_all() -> None:
    assert BY_HOOK["drm_ioctl"].items() < STRUCTS.items()


def as_declared() -> Found:
    """What the BTF of an object that fits says."""
    return {name: (ctypes.sizeof(struct), members_of(struct)) for name, struct in STRUCTS.items()}


def test_an_object_that_fits_has_no_difference() -> None:
    assert differences(as_declared()) == []


def test_structs_of_the_object_that_nobody_reads_do_not_matter() -> None:
    assert differences({**as_declared(), "knpu_new": (8, {"count": 0}), "task_struct": None}) == []


@pytest.mark.parametrize("name", STRUCTS)
def test_a_missing_struct(name: str) -> None:
    found = as_declared()
    found[name] = None
    assert differences(found) == [f"{name}: not in the object's BTF"]
    del found[name]
    assert differences(found) == [f"{name}: not in the object's BTF"]


@pytest.mark.parametrize("name", STRUCTS)
def test_a_struct_of_another_size(name: str) -> None:
    size, members = ctypes.sizeof(STRUCTS[name]), members_of(STRUCTS[name])
    assert differences({**as_declared(), name: (size + 8, members)}) == [
        f"{name}: {size + 8} bytes in the object, {size} expected"
    ]


@pytest.mark.parametrize(("name", "member"), [(n, m) for n, struct in STRUCTS.items() for m in members_of(struct)])
def test_a_member_that_moved_was_renamed_or_is_missing(name: str, member: str) -> None:
    size, members = ctypes.sizeof(STRUCTS[name]), members_of(STRUCTS[name])
    others = {m: offset for m, offset in members.items() if m != member}
    for changed in ({**members, member: members[member] + 4}, {**others, "renamed": members[member]}, others):
        (line,) = differences({**as_declared(), name: (size, changed)})
        assert line.startswith(f"{name}: members ")
        assert member in line


def test_every_difference_is_a_line() -> None:
    assert len(differences({})) == len(STRUCTS)
    assert len(differences({name: (1, {}) for name in STRUCTS})) == 2 * len(STRUCTS)


def test_numbers_that_other_modules_rely_on() -> None:
    assert len(KINDS) == layout.KINDS
    assert layout.SELFTEST_SLOT < layout.DEVICE_SLOTS
    assert len(set(LOSS_REASONS)) == len(LOSS_REASONS)
    assert ctypes.sizeof(layout.Cell) % 64 == 0  # no two cells share a cache line
    assert all(ctypes.sizeof(struct) % 8 == 0 for struct in STRUCTS.values())


@pytest.mark.parametrize(
    ("major", "minor", "index"),
    [
        (226, 0, 0),
        (226, 128, 128),
        (226, 1023, 1023),
        (226, 1024, None),
        (226, -1, None),
        (261, 0, 1024),
        (261, 255, 1279),
        (261, 256, None),
        (261, -1, None),
        (195, 0, None),
        (0, 0, None),
    ],
)
def test_rule_index(major: int, minor: int, index: int | None) -> None:
    assert rule_index(major, minor) == index


def test_no_two_nodes_share_a_rule() -> None:
    found = [rule_index(major, minor) for major in (226, 261) for minor in range(2048)]
    indexes = [index for index in found if index is not None]
    assert sorted(indexes) == list(range(layout.DRM_MINORS + layout.ACCEL_MINORS))
