# SPDX-License-Identifier: Apache-2.0
"""The Debian packages: nothing to complain of, the same bytes every time, everything that `make install` installs."""

from __future__ import annotations

import hashlib
import os
import shutil
from pathlib import Path

from tests.packages.conftest import ROOT, listed, run

# Made by debhelper or named in packaging/debian, besides what `make install` lays out
OWN_FILES = {
    "etc/default/kubenpu",
    "etc/kubenpu/kubenpu.toml",
    "usr/share/lintian/overrides/kubenpu",
    *(f"usr/share/doc/kubenpu/{name}" for name in ("ARCHITECTURE.md.gz", "NEWS.md.gz", "README.md.gz")),
    *(f"usr/share/doc/kubenpu/{name}" for name in ("changelog.gz", "copyright")),
}


def test_lintian(dist: Path) -> None:
    """No error and no warning, neither of the packages nor of their source."""
    (changes,) = dist.glob("*.changes")
    said = run("lintian", "--allow-root", "--fail-on=none", changes).splitlines()
    assert [line for line in said if line.startswith(("E:", "W:"))] == []


def test_the_same_bytes_elsewhere_and_later(dist: Path, tmp_path: Path) -> None:
    """From a copy of the sources in another directory, with another umask, time zone and language."""
    copy = tmp_path / "a place with a longer name".replace(" ", "-")
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns("build", "dist", ".venv", ".git", "*_cache"))
    environment = {**os.environ, "TZ": "Asia/Tokyo", "LC_ALL": "C.UTF-8", "HOME": str(tmp_path)}
    run("make", "-C", copy, "deb", env=environment, umask=0o077)
    assert _digests(copy / "dist") == _digests(dist)


def _digests(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.glob("*.deb")}


def test_everything_is_in_it(deb: Path, dist: Path, tmp_path: Path) -> None:
    """The two packages together are what `make install` installs, and no file is in both."""
    run("make", "-C", ROOT, "install", f"DESTDIR={tmp_path}/installed")
    run("dpkg-deb", "--extract", next(dist.glob("kubenpu-dev_*.deb")), tmp_path / "dev")
    headers = {name for name in listed(tmp_path / "dev") if not name.startswith("usr/share/doc/")}
    packaged = {name.removesuffix(".gz") if "/man/" in name else name for name in listed(deb)}
    packaged = {name for name in packaged if not name.startswith("DEBIAN/")}
    assert packaged & headers == set()
    assert packaged - OWN_FILES | headers == listed(tmp_path / "installed")
    assert packaged >= OWN_FILES


def test_what_operators_edit_is_kept(deb: Path) -> None:
    assert (deb / "DEBIAN/conffiles").read_text().split() == ["/etc/default/kubenpu", "/etc/kubenpu/kubenpu.toml"]
    for line in (deb / "etc/kubenpu/kubenpu.toml").read_text().splitlines():
        assert not line or line.startswith(("#", "[")), "a default that is set stays for ever"


def test_others_can_compile_each_header(dist: Path, tmp_path: Path) -> None:
    """Alone, without another header before it."""
    run("dpkg-deb", "--extract", next(dist.glob("kubenpu-dev_*.deb")), tmp_path)
    headers = sorted((tmp_path / "usr/include/kubenpu").iterdir())
    assert [path.name for path in headers] == ["clients.h", "drm_ioctl.h", "file_ioctl.h", "scheduler.h"]
    for path in headers:
        (tmp_path / "reader.c").write_text(f"#include <kubenpu/{path.name}>\n")
        run("gcc", "-Wall", "-Wextra", "-Werror", f"-I{tmp_path}/usr/include", "-fsyntax-only", tmp_path / "reader.c")
