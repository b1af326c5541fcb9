# SPDX-License-Identifier: Apache-2.0
"""Missing Python packages: `kubenpuctl doctor` names them, and what needs one fails alone."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kubenpu.cli import doctor_checks
from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Examination, Finding, examine
from kubenpu.cli.packages import PACKAGES, Package, explain_missing
from kubenpu.config.settings import SETTINGS, Settings


@pytest.fixture
def node() -> Examination:
    defaults: dict[str, Any] = {setting.field: setting.default for setting in SETTINGS}
    return Examination(Settings(**defaults), ("http://127.0.0.1:1/metrics",))


def one(node: Examination, check: str) -> Finding:
    (finding,) = examine(node, [(name, do) for name, do in CHECKS if name == check])
    return finding


def test_packages_are_there(node: Examination) -> None:
    assert one(node, "packages").status == OK


@pytest.mark.parametrize("package", PACKAGES, ids=lambda package: package.module)
def test_a_missing_package_is_named_as_distributions_do(
    node: Examination, monkeypatch: pytest.MonkeyPatch, package: Package
) -> None:
    monkeypatch.setattr(doctor_checks, "is_missing", lambda each: each is package)
    finding = one(node, "packages")
    assert (finding.status, finding.found) == (FAIL, f"no {package.debian}")
    assert package.debian in finding.remedy and package.fedora in finding.remedy


@pytest.mark.parametrize(
    ("module", "check", "status"), [("grpc", "runtime", WARN), ("prometheus_client", "kubenpud", FAIL)]
)
def test_a_check_fails_alone_without_its_package(
    node: Examination, monkeypatch: pytest.MonkeyPatch, module: str, check: str, status: str
) -> None:
    for name in [name for name in sys.modules if name.startswith(("kubenpu.identity.cri", "kubenpu.exporters.scrape"))]:
        monkeypatch.delitem(sys.modules, name)
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.setitem(sys.modules, name, None)  # as if it were not installed
    monkeypatch.setitem(sys.modules, module, None)
    finding = one(node, check)
    assert (finding.status, finding.found) == (status, f"Python's {module} is missing")
    assert finding.remedy.startswith("Install python3-")


def test_packages_are_those_of_ours() -> None:
    """What the doctor tells people to install is what our own Debian package depends on or recommends."""
    control = (Path(__file__).parents[2] / "packaging/debian/control").read_text().partition("\nPackage: kubenpu\n")[2]
    assert [package.debian for package in PACKAGES if f"\n {package.debian} (" not in control] == []


def test_a_package_nobody_knows_is_named_as_python_does() -> None:
    assert explain_missing(ModuleNotFoundError("no", name="tomllib.x")) == ("Python's tomllib is missing", "")
