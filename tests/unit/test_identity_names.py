# SPDX-License-Identifier: Apache-2.0
"""Names chosen by others, and cgroups by their id."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.cli.output import escape
from kubenpu.identity.index import CgroupIndex, alive, sees_whole_tree
from kubenpu.identity.names import clean_name
from kubenpu.model.text import clean_label


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("train-0", "train-0"),
        ("Größe-模型-🚀", "Größe-模型-🚀"),
        ('a"b\\c{d}', 'a"b\\c{d}'),
        ("a\nb\x00c\x1b[31m", r"a\nb\x00c\x1b[31m"),
        ("evil\u202egnp.exe\u2028", r"evil\u202egnp.exe\u2028"),
        ("bad\udcff", r"bad\udcff"),
        ("x" * 300, "x" * 253),
        ("\x01" * 300, r"\x01" * 253),
    ],
)
def test_hostile_name(text: str, kept: str) -> None:
    assert clean_name(text, 253) == kept


@given(st.text(alphabet=st.characters(exclude_categories=())), st.integers(0, 300))
def test_name_is_always_short_printable_and_utf8(text: str, limit: int) -> None:
    name = clean_name(text, limit)
    assert len(name) <= limit * len(r"\U000e0001")
    name.encode("utf-8")
    assert not set(name) & set("\n\r\t\x00\x1b\x7f\u0085\u2028\u2029")


@pytest.mark.parametrize("chars", ["\x01\x02\x1b", "\udc80\udc81\udcff", "\u200b\u202e"])
def test_names_that_cannot_be_printed_stay_distinct(chars: str) -> None:
    names = {clean_name(f"u{char}x.service", 255) for char in chars}
    assert len(names) == len(chars)
    assert {clean_label(name) for name in names} == names  # no exporter shows them otherwise
    assert {escape(f"u{char}x.service") for char in chars} == names  # nor whois


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for path in ("a.slice/b.service", "a.slice/c.scope/child", "d"):
        (tmp_path / path).mkdir(parents=True)
    (tmp_path / "a.slice/cgroup.procs").write_text("")
    (tmp_path / "link").symlink_to(tmp_path)
    return tmp_path


def inode(path: Path) -> int:
    return path.stat().st_ino


def test_index_finds_every_cgroup_with_one_walk(tree: Path) -> None:
    index = CgroupIndex(tree)
    wanted = {inode(tree / path): f"/{path}" for path in ("a.slice", "a.slice/c.scope/child", "d")}
    wanted[inode(tree)] = "/"
    assert {cgroup_id: index.path(cgroup_id) for cgroup_id in wanted} == wanted
    assert index.rebuilds == 1


def test_index_walks_again_for_a_new_cgroup_and_once_for_a_gone_one(tree: Path) -> None:
    index = CgroupIndex(tree)
    gone = inode(tree / "d")
    (tree / "d").rmdir()
    assert [index.path(gone) for _ in range(3)] == [None] * 3
    assert index.rebuilds == 1
    (tree / "f").mkdir()  # takes the number of the removed directory on file systems that reuse them
    (tree / "a.slice/later").mkdir()
    assert index.path(inode(tree / "a.slice/later")) == "/a.slice/later"
    assert index.rebuilds == 2


def test_index_forgets_what_is_gone_when_that_grows_too_large(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubenpu.identity.index.GONE_MAX", 2)
    index = CgroupIndex(tree)
    for cgroup_id in (-1, -2, -3, -3, -1):
        assert index.path(cgroup_id) is None
    assert index.rebuilds == 4


def test_walk_survives_directories_that_vanish_or_refuse(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    scandir = os.scandir

    def refuse(path: Path) -> object:
        if path.name == "c.scope":
            raise PermissionError(13, "Permission denied")
        if path.name == "d":
            path.rmdir()
        return scandir(path)

    wanted = [inode(tree / "a.slice/b.service"), inode(tree / "a.slice/c.scope")]
    monkeypatch.setattr("kubenpu.identity.index.os.scandir", refuse)
    index = CgroupIndex(tree)
    assert [index.path(cgroup_id) for cgroup_id in wanted] == ["/a.slice/b.service", "/a.slice/c.scope"]
    assert not (tree / "d").exists()


def test_index_says_when_it_could_not_see_everything(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As when a workload nests cgroups until their path is too long for any system call."""
    index = CgroupIndex(tree)
    assert index.path(1) is None
    assert index.complete
    scan = os.scandir

    def refuse(path: Path) -> Any:
        if path != tree:
            raise OSError(errno.ENAMETOOLONG, "File name too long")
        return scan(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert index.path(2) is None
    assert not index.complete


def test_index_keeps_names_that_are_no_utf8(tree: Path) -> None:
    odd = Path(os.fsdecode(os.fsencode(tree) + b"/x\xff.service"))
    odd.mkdir()
    path = CgroupIndex(tree).path(inode(odd))
    assert path is not None
    assert os.fsencode(path) == b"/x\xff.service"
    assert alive(tree, path, inode(odd))


def test_index_of_nothing(tmp_path: Path) -> None:
    assert CgroupIndex(tmp_path / "no").path(1) is None


def test_alive_means_same_path_and_same_id(tree: Path) -> None:
    cgroup_id = inode(tree / "d")
    assert alive(tree, "/d", cgroup_id)
    assert not alive(tree, "/d", cgroup_id + 1)
    assert not alive(tree, "/d/x", cgroup_id)
    assert not alive(tree, "/a.slice/cgroup.procs/x", cgroup_id)
    assert not alive(tree, "/nul\0", cgroup_id)


def test_what_may_not_be_looked_at_counts_as_alive(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: Path) -> os.stat_result:
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "stat", refuse)
    assert alive(tree, "/d", 1)


def test_a_directory_is_not_the_whole_tree(tmp_path: Path) -> None:
    assert not sees_whole_tree(tmp_path)
    assert not sees_whole_tree(tmp_path / "no")
