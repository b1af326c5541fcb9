# SPDX-License-Identifier: Apache-2.0
"""The Fedora packages, as far as another system can tell: rpmlint, their files, their scriptlets, that they start."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.packages.conftest import ROOT, listed, run

HELPER = "usr/lib/systemd/systemd-update-helper"
ABOUT = "licence and history"
UNITS = sorted(path.name for path in (ROOT / "systemd").iterdir() if path.suffix in (".service", ".socket"))


class Root:
    """A directory with a shell, a stand-in for systemd's helper that writes down what it is told, and our packages."""

    def __init__(self, path: Path, packages: list[Path]) -> None:
        self.path, self.packages = path, packages
        for file in ("/bin/sh", "/bin/rm", *_libraries("/bin/sh"), *_libraries("/bin/rm")):
            target = path / file.lstrip("/")
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(file, target)
        helper = path / HELPER
        helper.parent.mkdir(parents=True)
        helper.write_text('#!/bin/sh\necho "$@" >>/told\n')
        helper.chmod(0o755)

    def rpm(self, *words: str | Path) -> str:
        return run("rpm", "--root", self.path, "--dbpath", "/var/lib/rpm", *words)

    def told(self) -> list[list[str]]:
        """What the helper was told since the last time."""
        told = self.path / "told"
        lines = [line.split() for line in told.read_text().splitlines()]
        told.unlink()
        return lines


def _libraries(program: str) -> list[str]:
    return re.findall(r"/\S+", run("ldd", program))


@pytest.fixture(scope="module")
def root(dist: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Root]:
    made = Root(tmp_path_factory.mktemp("root"), sorted(dist.glob("*.noarch.rpm")))
    made.rpm("--install", "--nodeps", *made.packages)
    yield made


def test_rpmlint(dist: Path) -> None:
    """Nothing but what packaging/rpm/rpmlint.toml explains."""
    configuration, spec = (ROOT / "packaging/rpm" / name for name in ("rpmlint.toml", "kubenpu.spec"))
    said = run("rpmlint", "-c", configuration, spec, *sorted(dist.glob("*.rpm")))
    assert re.findall(r"^\S+: [EW]: .*$", said, re.M) == []


def test_the_same_files_as_debians(root: Root, deb: Path) -> None:
    """Where Fedora has other places for the same thing, they are taken for the same."""
    here = {name.lstrip("/") for name in root.rpm("--query", "--list", "kubenpu").splitlines()}
    files = {_place(name) for name in here if not (root.path / name).is_dir()}
    there = {_place(name) for name in listed(deb) if not name.startswith(("DEBIAN/", "usr/share/lintian/"))}
    assert files - {ABOUT} == there - {ABOUT}
    assert ABOUT in files & there


def _place(name: str) -> str:
    """One name for what both have; licence and history are ABOUT."""
    name = re.sub(r"^usr/lib/python3[.\d]*/(?:dist|site)-packages/", "python/", name)
    name = re.sub(r"^usr/share/doc/kubenpu-[\d.]+/", "usr/share/doc/kubenpu/", name)
    for here, there in (("etc/sysconfig/", "etc/default/"), ("zsh/site-functions/", "zsh/vendor-completions/")):
        name = name.replace(here, there)
    name = name.removesuffix(".gz")
    return ABOUT if re.match(r"usr/share/(licenses/|doc/kubenpu/(changelog|copyright))", name) else name


def test_it_starts(root: Root) -> None:
    """With the Python packages of this machine, which has no Fedora's."""
    (packages,) = root.path.glob("usr/lib/python3*/site-packages")
    environment = {**os.environ, "PYTHONPATH": str(packages), "PYTHONDONTWRITEBYTECODE": "1"}
    for program, arguments in (("usr/bin/kubenpuctl", "drivers"), ("usr/sbin/kubenpud", "--help")):
        said = run("/usr/bin/python3", root.path / program, arguments, env=environment, cwd="/")
        assert "amdgpu" in said or "--web.listen-address" in said
    origin = run("/usr/bin/python3", "-c", "import kubenpu; print(kubenpu.__file__)", env=environment, cwd="/")
    assert origin.startswith(str(root.path))


def test_scriptlets(root: Root) -> None:
    """Presets decide at first; an upgrade reloads the probe and restarts the others; a removal stops all."""
    assert [(told[0], sorted(told[1:])) for told in root.told()] == [("install-system-units", UNITS)]
    edited = root.path / "etc/sysconfig/kubenpu"
    edited.write_text('ARGS="--log.level=debug"\n')
    root.rpm("--upgrade", "--force", "--nodeps", *root.packages)
    assert root.told() == [
        ["mark-reload-system-units", "kubenpu-probe.service"],
        ["mark-restart-system-units", "kubenpu-clients.service", "kubenpud.service"],
    ]
    assert edited.read_text() == 'ARGS="--log.level=debug"\n'
    root.rpm("--erase", "kubenpu", "kubenpu-devel")
    assert [(told[0], sorted(told[1:])) for told in root.told()] == [("remove-system-units", UNITS)]
    assert [name for name in listed(root.path) if "kubenpu" in name] == ["etc/sysconfig/kubenpu.rpmsave"]
