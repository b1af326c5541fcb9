# SPDX-License-Identifier: Apache-2.0
"""kubenpuctl as a whole: subcommands, exit codes, and what becomes of errors and closed pipes."""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Callable

import pytest

from kubenpu import __version__
from kubenpu.cli import main as program
from kubenpu.cli.main import COMMANDS, main, make_parser
from kubenpu.model.errors import SourceError
from tests.fakes.sim_metrics import serve_text

NAMES = ("devices", "drivers", "whois", "pods", "doctor")


class FakeCommand:
    """A subcommand `fake` that does what it is told."""

    def __init__(self, do: Callable[[argparse.Namespace], int]) -> None:
        self._do = do

    def add_parser(self, subparsers: argparse._SubParsersAction[argparse.ArgumentParser]) -> None:
        subparsers.add_parser("fake").set_defaults(func=self._do)


def run_fake(monkeypatch: pytest.MonkeyPatch, do: Callable[[argparse.Namespace], int]) -> int:
    monkeypatch.setattr(program, "COMMANDS", (FakeCommand(do),))
    return main(["fake"])


def test_every_command_is_registered_and_documented(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(COMMANDS) == len(NAMES)
    for name in NAMES:
        with pytest.raises(SystemExit) as stopped:
            main([name, "--help"])
        assert stopped.value.code == 0
        assert f"usage: kubenpuctl {name}" in capsys.readouterr().out


@pytest.mark.parametrize("name", NAMES)
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


def test_a_closed_pipe_is_no_error() -> None:
    lines = "".join(
        f'kubenpu_ioctl_total{{namespace="n",pod="p{i}",container="c",device="d",vendor="v",kind="submit"}} 1\n'
        for i in range(5000)
    )
    with serve_text("# TYPE kubenpu_ioctl counter\n" + lines) as url:
        command = [sys.executable, "-m", "kubenpu.cli.main", "pods", "--url", url]
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert process.stderr is not None
            assert process.stdout.readline().startswith("NAMESPACE")
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(30) == 0
