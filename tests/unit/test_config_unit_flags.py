# SPDX-License-Identifier: Apache-2.0
"""ARGS of the unit's environment files, as systemd would hand them to kubenpud."""

from __future__ import annotations

from pathlib import Path

import pytest

from kubenpu.cli.main import main
from kubenpu.config import unit_flags as module
from kubenpu.config.settings import read_settings
from kubenpu.config.unit_flags import FILES, unit_flags
from kubenpu.model.errors import ConfigError

UNIT = Path(__file__).parents[2] / "systemd" / "kubenpud.service"


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    made = tmp_path / "default", tmp_path / "sysconfig"
    monkeypatch.setattr(module, "FILES", made)
    return made


def test_the_files_are_those_of_the_unit() -> None:
    lines = UNIT.read_text().splitlines()
    assert [line for line in lines if line.startswith("EnvironmentFile=")] == [f"EnvironmentFile=-{f}" for f in FILES]


@pytest.mark.parametrize(
    "text",
    [
        'ARGS="--web.listen-address=:1 --log.level=debug"',
        "ARGS=--web.listen-address=:1 --log.level=debug",
        "#ARGS=--no\n; ARGS=--no\nARGS=--no\n ARGS='--web.listen-address=\":1\" --log.level=debug'\nOTHER=x\n",
        "ARGS=--web.listen-address=:1 \\\n--log.level=debug\n",
    ],
)
def test_args(files: tuple[Path, Path], text: str) -> None:
    files[0].write_text(text)
    settings = read_settings(unit_flags())
    assert (settings.listen_addresses, settings.log_level) == ((":1",), "debug")


def test_the_second_file_wins_and_neither_is_needed(files: tuple[Path, Path]) -> None:
    assert read_settings(unit_flags()).log_level == "info"
    files[0].write_text("ARGS=--log.level=debug --log.format=json")
    files[1].write_text("ARGS=--log.level=warn")
    settings = read_settings(unit_flags())
    assert (settings.log_level, settings.log_format) == ("warn", "logfmt")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ARGS=--nonsense", "unrecognized arguments: --nonsense"),
        ("ARGS=--version", "they only print something"),
        ('ARGS="--log.level=debug', "No closing quotation"),
    ],
)
def test_what_kubenpud_would_not_start_with(
    files: tuple[Path, Path], capsys: pytest.CaptureFixture[str], text: str, message: str
) -> None:
    files[0].write_text(text)
    with pytest.raises(ConfigError, match=message):
        unit_flags()
    assert capsys.readouterr() == ("", "")


def test_doctor_goes_by_them(files: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    files[0].write_text(f"ARGS=--web.listen-address=unix:{tmp_path}/none.sock")
    main(["doctor"])
    assert f"unix:{tmp_path}/none.sock:/metrics" in capsys.readouterr().out
