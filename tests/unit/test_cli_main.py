# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl as a whole: subcommands, exit codes, and what becomes of errors and closed pipes."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kubenpu import __version__
from kubenpu.cli import main as program
from kubenpu.cli.main import COMMANDS, EXIT_CODES, Command, main, make_parser
from kubenpu.model.errors import SourceError, UnreachableError

NAMES = ("devices", "drivers", "whois", "pods", "top", "watch", "report", "doctor")
LISTINGS = tuple(name for name in NAMES if name not in ("top", "watch", "report"))
ROOT = Path(__file__).parents[2]


def run_fake(monkeypatch: pytest.MonkeyPatch, do: Callable[[argparse.Namespace], int]) -> int:
    """A subcommand `fake` that does what it is told."""
    module: Any = SimpleNamespace(add_arguments=lambda parser: parser.set_defaults(func=do))
    monkeypatch.setattr(program, "COMMANDS", (Command("fake", "", lambda: module),))
    return main(["fake"])


def test_every_command_is_registered_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert tuple(command.name for command in COMMANDS) == NAMES
    for name in NAMES:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"usage: kubenpuctl {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", LISTINGS)
def test_every_listing_takes_json_and_wide(name: str) -> None:
    args = make_parser().parse_args([name, "--json", "-o", "wide"])
    assert args.json
    assert args.output == "wide"


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(["--version"])
    assert stopped.value.code == 0
    assert capsys.readouterr().out == f"kubenpuctl {__version__}\n"


@pytest.mark.parametrize("arguments", [[], ["no-such-command"], ["devices", "--no-such-flag"], ["pods", "-o", "tall"]])
def test_misuse_is_2(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        main(arguments)
    assert stopped.value.code == 2


@pytest.mark.parametrize("code", [0, 1, 3])
def test_the_commands_code_is_the_programs(code: int, monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_fake(monkeypatch, lambda _: code) == code


def test_our_errors_are_one_line_and_1(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_args: argparse.Namespace) -> int:
        raise SourceError("the moon\nis \x1b[31mred", "Wait")

    assert run_fake(monkeypatch, fail) == 1
    assert capsys.readouterr().err == "kubenpuctl: the moon\\nis \\x1b[31mred. Wait.\n"


def test_interrupt_is_130(monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupt(_args: argparse.Namespace) -> int:
        raise KeyboardInterrupt

    assert run_fake(monkeypatch, interrupt) == 130


def test_what_cannot_be_reached_is_3(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    def fail(_args: argparse.Namespace) -> int:
        raise UnreachableError("no bus", "Start one")

    assert run_fake(monkeypatch, fail) == 3
    assert capsys.readouterr().err == "kubenpuctl: no bus. Start one.\n"


def test_exit_codes_are_told(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["--help"])
    shown = " ".join(capsys.readouterr().out.split())
    assert all(f"{code} {text}" in shown for code, text in EXIT_CODES.items())


def python(code: str) -> str:
    """What a new interpreter prints, in which no third-party module can be found."""
    return subprocess.run(
        [sys.executable, "-S", "-c", code],
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout


def test_the_whole_command_line_can_be_made_without_any_package() -> None:
    """Man pages and completion are made where nothing is installed."""
    shown = python("from kubenpu.cli.main import make_parser; print(make_parser().format_help())")
    assert "doctor" in shown


@pytest.mark.parametrize("name", LISTINGS)
def test_a_subcommand_does_not_wait_for_the_others(name: str) -> None:
    """What makes Python slow to start is imported by those alone who use it."""
    slow = {"asyncio", "ssl", "curses", "http.client", "kubenpu.exporters.dbus_client"}
    code = f"import sys; from kubenpu.cli.main import make_parser; make_parser(['{name}']); print(*sys.modules)"
    assert slow & set(python(code).split()) == set()
    loaded = {other for other in NAMES if f"kubenpu.cli.{other}" in python(code).split()}
    assert loaded - {"devices"} == {name} - {"devices"}


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    targets = "".join(f"/system.slice/unit-{i}.service\n" for i in range(5000))
    (tmp_path / "targets").write_text(targets)
    with (
        (tmp_path / "targets").open() as stdin,
        subprocess.Popen(
            [sys.executable, "-m", "kubenpu.cli.main", "whois", "--stdin"],
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        ) as process,
    ):
        assert process.stdout is not None
        assert process.stderr is not None
        assert process.stdout.readline().startswith("KIND")
        process.stdout.close()
        assert process.stderr.read() == ""
        assert process.wait(30) == 0
