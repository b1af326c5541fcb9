# SPDX-License-Identifier: Apache-2.0
"""Memory that the kernel charged to one cgroup: a tree of files as the dmem controller shows them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kubenpu.kernel import dmem
from kubenpu.kernel.dmem import MAX_CHILDREN, is_offered, parse_current, read_charged

GPU, OTHER = "0000:03:00.0", "0000:04:00.0"
VRAM = (GPU, "vram")


def make(mount: Path, path: str, current: str | None = None) -> int:
    """A cgroup; `current` None: the controller is not on for it."""
    directory = mount / path[1:]
    directory.mkdir(parents=True, exist_ok=True)
    if current is not None:
        (directory / "dmem.current").write_text(current)
    return directory.stat().st_ino


def vram(size: int) -> str:
    return f"drm/{GPU}/vram {size}\n"


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("cpuset cpu io memory pids rdma misc dmem\n", True),
        ("cpuset cpu io memory pids rdma misc\n", False),
        ("xdmem dmems\n", False),
        ("\x80", False),
        (None, False),
    ],
)
def test_whether_the_kernel_has_it(tmp_path: Path, text: str | None, found: bool) -> None:
    if text is not None:
        (tmp_path / "cgroup.controllers").write_bytes(text.encode("latin-1"))
    assert is_offered(tmp_path) is found


def test_regions_by_device() -> None:
    text = f"drm/{GPU}/vram0 8514437120\ndrm/{GPU}/stolen 0\ndrm/{OTHER}/vram 1\n"
    assert parse_current(text) == {(GPU, "vram0"): 8514437120, (GPU, "stolen"): 0, (OTHER, "vram"): 1}


def test_a_region_that_is_called_as_another() -> None:
    assert parse_current(vram(1) + f"accel/{GPU}/vram 2\n") == {VRAM: 3}


@pytest.mark.parametrize(
    "line",
    [
        "",
        f"drm/{GPU}/vram",
        f"drm/{GPU}/vram max",
        f"drm/{GPU}/vram -1",
        f"drm/{GPU}/vram 1 2",
        f"drm/{GPU}/vram  1",
        f"drm/{GPU}/vram {'9' * 20}",
        f"drm/{GPU}/{'v' * 33} 1",
        f"drm/{GPU}/v}}\u2028 1",
        f"drm/{GPU}/a/b 1",
        f"drm/{'x' * 65}/vram 1",
        f"{GPU}/vram 1",
        f"drm/{GPU}/vram ١",
    ],
)
def test_a_line_that_is_none(line: str) -> None:
    assert parse_current(f"{line}\n{vram(7)}") == {VRAM: 7}


def test_what_is_below_is_not_its_own(tmp_path: Path) -> None:
    """Every byte of the tree is one cgroup's: what they have adds up to what the kernel says of the whole."""
    top = make(tmp_path, "/pod", vram(100) + f"drm/{OTHER}/vram 5\n")
    here = make(tmp_path, "/pod/a", vram(60))
    deep = make(tmp_path, "/pod/a/deep", vram(25))
    off = make(tmp_path, "/pod/off")
    assert read_charged(tmp_path, "/pod", top) == {VRAM: 40, (OTHER, "vram"): 5}
    assert read_charged(tmp_path, "/pod/a", here) == {VRAM: 35}
    assert read_charged(tmp_path, "/pod/a/deep", deep) == {VRAM: 25}
    assert read_charged(tmp_path, "/pod/off", off) == {}, "the controller is not on for it"


def test_what_grows_meanwhile_is_never_less_than_nothing(tmp_path: Path) -> None:
    top = make(tmp_path, "/pod", vram(10))
    make(tmp_path, "/pod/a", vram(11))
    assert read_charged(tmp_path, "/pod", top) == {VRAM: 0}


def test_the_root(tmp_path: Path) -> None:
    make(tmp_path, "/", vram(10))
    make(tmp_path, "/a.slice", vram(4))
    assert read_charged(tmp_path, "/", tmp_path.stat().st_ino) == {VRAM: 6}


def test_another_cgroup_in_its_place(tmp_path: Path) -> None:
    found = make(tmp_path, "/pod", vram(10))
    assert read_charged(tmp_path, "/pod", found + 1) == {}
    assert read_charged(tmp_path, "/gone", found) == {}
    assert read_charged(tmp_path, "/po\0d", found) == {}
    (tmp_path / "file").write_text("")
    assert read_charged(tmp_path, "/file", found) == {}


def test_more_below_than_anybody_needs(tmp_path: Path) -> None:
    top = make(tmp_path, "/pod", vram(10_000))
    for n in range(MAX_CHILDREN):
        make(tmp_path, f"/pod/{n}", vram(1))
    assert read_charged(tmp_path, "/pod", top) == {VRAM: 10_000 - MAX_CHILDREN}
    make(tmp_path, "/pod/more", vram(1))
    assert read_charged(tmp_path, "/pod", top) == {}, "not known"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    top = make(tmp_path, "/pod", vram(10))
    child = make(tmp_path, "/pod/a", "\x80")
    assert read_charged(tmp_path, "/pod/a", child) == {}
    assert read_charged(tmp_path, "/pod", top) == {}, "what is below is not known"


def test_a_child_that_goes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    top = make(tmp_path, "/pod", vram(10))
    make(tmp_path, "/pod/a", vram(4))
    make(tmp_path, "/pod/b", vram(1))
    monkeypatch.setattr(dmem, "_children", lambda _directory: iter(["gone", "b"]))
    assert read_charged(tmp_path, "/pod", top) == {VRAM: 9}


def test_nothing_stays_open(tmp_path: Path) -> None:
    top = make(tmp_path, "/pod", vram(10))
    make(tmp_path, "/pod/a", "\x80")
    before = os.listdir("/proc/self/fd")  # noqa: PTH208 - of names
    read_charged(tmp_path, "/pod", top)
    assert os.listdir("/proc/self/fd") == before  # noqa: PTH208
