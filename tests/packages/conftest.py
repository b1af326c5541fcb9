# SPDX-License-Identifier: Apache-2.0
"""The packages as `make deb` and `make rpm` write them to dist/, built once for all tests, and what is in them."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]


def run(*words: str | Path, **options: object) -> str:
    """What the command printed; AssertionError with that when it fails."""
    done = subprocess.run(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **options)  # type: ignore[call-overload]  # options as subprocess has them
    assert done.returncode == 0, done.stdout
    return str(done.stdout)


def listed(root: Path) -> set[str]:
    """Files below a directory, as paths from it."""
    return {str(path.relative_to(root)) for path in root.rglob("*") if not path.is_dir()}


@pytest.fixture(scope="session")
def dist() -> Iterator[Path]:
    shutil.rmtree(ROOT / "dist", ignore_errors=True)
    run("make", "-C", ROOT, "deb", "rpm")
    yield ROOT / "dist"


@pytest.fixture(scope="session")
def deb(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The Debian package kubenpu, unpacked, with its control files in DEBIAN/."""
    root = tmp_path_factory.mktemp("deb")
    run("dpkg-deb", "--raw-extract", next(dist.glob("kubenpu_*_all.deb")), root)
    return root
