# SPDX-License-Identifier: Apache-2.0
"""The two packages say the same as the sources and as each other: version, dependencies, units, files of flags."""

from __future__ import annotations

import re
import tomllib

import pytest

from kubenpu import __version__
from tests.rules.tree import ROOT, files

DEBIAN, RPM = ROOT / "packaging/debian", ROOT / "packaging/rpm"
CONTROL, SPEC = (DEBIAN / "control").read_text(), (RPM / "kubenpu.spec").read_text()
SCRIPTS = [path for path in files("inst", "rm", below="packaging/debian")]
# what pyproject.toml calls it, where that is not the name of the Debian package after python3-
DEBIAN_NAMES = {"PyYAML": "yaml"}


def python_dependencies(group: str) -> list[tuple[str, str]]:
    """Name and least version, of what always is needed ("") or of an extra."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = project["optional-dependencies"][group] if group else project["dependencies"]
    return [tuple(line.split(">=")) for line in lines]


def units() -> list[str]:
    return [path.name for path in files(".service", ".socket", below="systemd") if path.parent.name == "systemd"]


def test_one_version() -> None:
    assert re.findall(r"^kubenpu \((\S+)\)", (DEBIAN / "changelog").read_text(), re.M)[0] == __version__
    assert re.findall(r"^Version: +(\S+)", SPEC, re.M) == [__version__]
    assert re.findall(r"^\* .* - (\S+)-1$", SPEC, re.M)[0] == __version__


@pytest.mark.parametrize(("group", "debian", "rpm"), [("", "Depends", "Requires"), ("web", "Recommends", "Recommends")])
def test_python_dependencies(group: str, debian: str, rpm: str) -> None:
    """Everything that pyproject.toml asks for, in at least that version."""
    field = re.findall(rf"^{debian}:\n((?: .*\n)+)", CONTROL, re.M)[0]
    asked = [(DEBIAN_NAMES.get(name, name), version) for name, version in python_dependencies(group)]
    assert [name for name, version in asked if f" python3-{name} (>= {version}),\n" not in field] == []
    names = [(name.lower(), version.removesuffix(".0")) for name, version in python_dependencies(group)]
    lines = re.findall(rf"^{rpm}: +python3dist\((\S+)\) >= (\S+)$", SPEC, re.M)
    assert [each for each in names if each not in lines] == []


def test_every_unit_is_cared_for() -> None:
    """Both packages name each unit: where it is enabled, stopped, forgotten."""
    assert {path.name for path in SCRIPTS} == {f"kubenpu.{name}" for name in ("preinst", "postinst", "prerm", "postrm")}
    for path in SCRIPTS:
        if path.name != "kubenpu.preinst":
            assert [unit for unit in units() if unit not in path.read_text()] == [], path
    for macro in ("systemd_post", "systemd_preun"):
        (line,) = re.findall(rf"^%{macro} (.*)$", SPEC, re.M)
        assert sorted(line.split()) == sorted(units())


def test_sockets_come_before_the_service() -> None:
    """Beside a running service they refuse to start, and so does a socket that an operator enables."""
    (_, start) = (DEBIAN / "kubenpu.postinst").read_text().split("\ncase ")
    assert 0 < start.index("start_enabled_sockets") < start.index("deb-systemd-invoke start")
    readme, page = (ROOT / "README.md").read_text(), (ROOT / "packaging/man/kubenpud.rst").read_text()
    order = ("systemctl stop kubenpud", "systemctl enable --now kubenpud-metrics.socket", "systemctl start kubenpud")
    for text in (readme, page):
        assert re.search(r".{1,9}".join(map(re.escape, order)), " ".join(text.split()))


def test_the_probe_is_never_restarted() -> None:
    """A restart forgets all counts; `remove` alone stops it."""
    lines = [line for path in SCRIPTS for line in path.read_text().splitlines() if "kubenpu-probe" in line]
    actions = {found for line in lines for found in re.findall(r"deb-systemd-invoke (\S+)", line)}
    assert actions == {"start", "stop", "try-reload-or-restart"}
    assert "%systemd_postun_with_restart kubenpu-probe" not in SPEC


def test_both_have_the_same_file_of_flags() -> None:
    assert (DEBIAN / "kubenpu.default").read_text() == (RPM / "kubenpu.sysconfig").read_text()
