# SPDX-License-Identifier: Apache-2.0
"""The Debian packages that guests install: of this tree, and of the same tree as its next version would be.

Owns build/vm-packages, where the packages of the last content of the tree are kept: building them takes some seconds.
The next version differs in its number, in a default of the settings and in the text of the flags' file, so that an
upgrade has something to do. Refuses to go on when a package does not build.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import tempfile
from pathlib import Path

from kubenpu import __version__
from tests.vm.image import locked

TREE = Path(__file__).resolve().parents[2]
KEPT = TREE / "build/vm-packages"
VERSIONS = {"this": __version__, "next": f"{__version__}+next"}
SOURCES = ("bpf", "kubenpu", "packaging", "systemd", "Makefile", "README.md", "NEWS.md")
# file, what is there once, what the next version has instead
CHANGES = (
    ("kubenpu/__init__.py", f'"{VERSIONS["this"]}"', f'"{VERSIONS["next"]}"'),
    ("packaging/debian/changelog", f"({VERSIONS['this']})", f"({VERSIONS['next']})"),
    ("packaging/debian/kubenpu.default", "# Flags of", "# The flags of"),
    (
        "kubenpu/config/settings.py",
        "whole_number(1, 7 * 24 * 3600),\n        600,",
        "whole_number(1, 7200),\n        900,",
    ),
)


def ensure() -> Path:
    """The directory with this/ and next/, each with the .deb files."""
    target = KEPT / _digest()
    KEPT.parent.mkdir(parents=True, exist_ok=True)
    with locked(KEPT.with_suffix(".lock")):  # against another rig in this tree
        if not target.is_dir():
            _make(target)
    return target


def _make(target: Path) -> None:
    shutil.rmtree(KEPT, ignore_errors=True)
    KEPT.mkdir(parents=True)
    with tempfile.TemporaryDirectory(dir=KEPT) as scratch:
        done = Path(scratch, "done")
        _build(TREE, done / "this")
        next_tree = Path(scratch, "next")
        shutil.copytree(TREE / f"build/deb/kubenpu-{VERSIONS['this']}", next_tree)
        shutil.rmtree(next_tree / "debian")
        for name, old, new in CHANGES:
            _replace(next_tree / name, old, new)
        _build(next_tree, done / "next")
        done.rename(target)


def _digest() -> str:
    found = hashlib.sha256()
    for name in SOURCES:
        path = TREE / name
        for file in sorted(path.rglob("*")) if path.is_dir() else [path]:
            if file.is_file() and "__pycache__" not in file.parts:
                found.update(f"{file} {file.stat().st_mode}\n".encode() + file.read_bytes())
    return found.hexdigest()[:12]


def _build(tree: Path, target: Path) -> None:
    done = subprocess.run(["make", "-C", tree, "deb"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False)
    assert done.returncode == 0, done.stdout.decode(errors="replace")
    target.mkdir(parents=True)
    for package in (tree / "build/deb").glob("*.deb"):
        shutil.copy(package, target)


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text()
    assert text.count(old) == 1, f"{path} has not exactly one {old!r}"
    path.write_text(text.replace(old, new))
