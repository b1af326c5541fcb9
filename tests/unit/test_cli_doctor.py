# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl doctor` as a command: exit codes, tables, JSON, places. test_cli_doctor_checks.py has the checks."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Examination, Finding
from kubenpu.cli.main import main
from tests.fakes.sim_metrics import free_url
from tests.fakes.sim_plan import DEVICES
from tests.fakes.sim_sysfs import write_sysfs


def arguments(place: Path) -> list[str]:
    """The command line for a node whose everything is below `place`, without a daemon."""
    flags = ("--sysfs", "--drivers-dir", "--run-dir", "--pin-dir")
    return ["doctor", *(word for flag in flags for word in (flag, str(place / flag[2:]))), "--url", free_url()]


def test_command_fails_without_a_probe(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_sysfs(tmp_path / "sysfs", DEVICES)
    assert main([*arguments(tmp_path), "--json"]) == 1
    out, err = capsys.readouterr()
    document = json.loads(out)
    assert all(set(entry) == {"check", "found", "needed", "remedy", "status"} for entry in document)
    assert {name for name, _ in CHECKS} <= {entry["check"] for entry in document}
    assert "simulated node" in err
    assert "checks failed" in err


def test_command_is_0_when_nothing_fails(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def warn(_node: Examination) -> list[Finding]:
        return [Finding("odd\x1b[2J", "x", "y", "Look at it", WARN), Finding("fine", "x", "x")]

    monkeypatch.setattr("kubenpu.cli.doctor.CHECKS", (("odd", warn),))
    assert main(arguments(tmp_path)) == 0
    out, err = capsys.readouterr()
    assert err == ""
    assert "\x1b" not in out
    assert out.split("\n\n")[1].split("\n")[1].split() == ["odd\\x1b[2J", "Look", "at", "it"]


def test_command_goes_on_with_broken_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    broken = tmp_path / "kubenpu.toml"
    broken.write_text("kernel = [")
    assert main(["doctor", "--config.file", str(broken), "--json", "--url", free_url()]) == 1
    by_check = {entry["check"]: entry for entry in json.loads(capsys.readouterr().out)}
    assert by_check["settings"]["status"] == FAIL
    assert str(broken) in by_check["settings"]["found"]
    assert by_check["kernel"]["status"] == OK


@pytest.mark.parametrize(
    "url",
    [
        "http://localhost:99999",
        "http://localhost:x",
        "http://localhost:0/",
        "http:///metrics",
        "ftp://a",
        "",
        "[",
        "unix:/s",
    ],
)
def test_an_url_that_nobody_can_ask_is_misuse(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["doctor", "--url", url])
    assert stopped.value.code == 2
    assert "give one like http" in capsys.readouterr().err


def test_an_url_may_be_a_socket(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"unix:{tmp_path}/s:/metrics"
    main([*arguments(tmp_path), "--url", url])
    assert f"does not answer at {url}" in capsys.readouterr().out
