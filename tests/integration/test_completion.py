# SPDX-License-Identifier: Apache-2.0
"""Shell completion in the shells themselves: what Tab makes of a line, with the files that are installed alone."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from pathlib import Path

import pytest

from tests.fakes.terminal import DEADLINE_S, Terminal

ROOT = Path(__file__).parents[2]
PROGRAMS = ("kubenpuctl", "kubenpud", "kubenpu-probe")
PROMPT = "ready> "
# Line before Tab; what is there afterwards.
SINGLE = {
    "kubenpuctl dri": "kubenpuctl drivers ",
    "kubenpuctl --ver": "kubenpuctl --version ",
    "kubenpuctl pods --kin": "kubenpuctl pods --kind",
    "kubenpuctl pods --kind ho": "kubenpuctl pods --kind host ",
    "kubenpuctl pods --kind=ho": "kubenpuctl pods --kind=host ",
    "kubenpuctl devices -o ": "kubenpuctl devices -o wide ",
    "kubenpuctl top --sort fa": "kubenpuctl top --sort failed ",
    "kubenpuctl doctor --config.file /etc/hostn": "kubenpuctl doctor --config.file /etc/hostname ",
    "kubenpud --log.lev": "kubenpud --log.level",
    "kubenpud --log.level de": "kubenpud --log.level debug ",
    "kubenpu-probe unl": "kubenpu-probe unload ",
    "kubenpu-probe load --mechanism kprobe.": "kubenpu-probe load --mechanism kprobe.multi ",
}
COMMANDS = ("devices", "drivers", "whois", "pods", "top", "watch", "report", "doctor")


@pytest.fixture(scope="module")
def share(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What becomes /usr/share; and beside it programs of these names, as fish looks for them."""
    place = tmp_path_factory.mktemp("completion")
    script = ROOT / "packaging/shell/make_completion.py"
    subprocess.run([sys.executable, str(script), str(place / "share")], env={"PYTHONPATH": str(ROOT)}, check=True)
    (place / "bin").mkdir()
    for name in PROGRAMS:
        (place / "bin" / name).write_text("#!/bin/sh\n")
        (place / "bin" / name).chmod(0o755)
    return place / "share"


def environment(share: Path) -> dict[str, str]:
    return {
        "HOME": str(share),
        "PATH": f"{share.parent}/bin:{os.environ['PATH']}",
        "XDG_DATA_DIRS": str(share),
        "PS1": PROMPT,
    }


@contextmanager
def shell(share: Path, command: list[str], *setup: str) -> Iterator[Terminal]:
    with Terminal(command, 160, 50, env=environment(share)) as terminal:
        for line in ("", *setup):
            terminal.send(line + "\n")
        terminal.send("echo set''up\n")
        terminal.wait_for(lambda: "setup" in terminal.shown and terminal.before_cursor == PROMPT)
        yield terminal


@contextmanager
def bash(share: Path) -> Iterator[Terminal]:
    command = ["bash", "--norc", "--noprofile", "-i"]
    with shell(
        share, command, "bind 'set enable-bracketed-paste off'", ". /usr/share/bash-completion/bash_completion"
    ) as t:
        yield t


@contextmanager
def zsh(share: Path) -> Iterator[Terminal]:
    setup = (f"PS1='{PROMPT}'; unset zle_bracketed_paste", f"fpath=({share}/zsh/vendor-completions $fpath)")
    with shell(share, ["zsh", "-f", "-i"], *setup, "autoload -Uz compinit; compinit -u -D") as terminal:
        yield terminal


def is_typed(terminal: Terminal, text: str) -> bool:
    """Shells differ in what they add: a blank, a = or nothing."""
    return terminal.before_cursor.rstrip(" =") == PROMPT + text.rstrip()


SHELLS = pytest.mark.parametrize("start", [bash, zsh])
Start = Callable[[Path], AbstractContextManager[Terminal]]


@SHELLS
def test_tab_completes(share: Path, start: Start) -> None:
    with start(share) as terminal:
        for typed, completed in SINGLE.items():
            terminal.send(typed + "\t")
            terminal.wait_for(partial(is_typed, terminal, completed))
            terminal.send("\x15\n")
            terminal.wait_for(lambda: terminal.before_cursor == PROMPT)


@SHELLS
def test_tab_twice_lists_the_subcommands(share: Path, start: Start) -> None:
    with start(share) as terminal:
        terminal.send("kubenpuctl \t\t")
        terminal.wait_for(lambda: all(name in terminal.text for name in COMMANDS))


@SHELLS
def test_a_free_value_completes_to_nothing(share: Path, start: Start) -> None:
    with start(share) as terminal:
        terminal.send("kubenpuctl pods --pod \t\tx\n")
        terminal.wait_for(lambda: "--pod x" in terminal.text and terminal.before_cursor == PROMPT)
        assert "--help" not in terminal.text


def fish(share: Path, typed: str) -> list[str]:
    done = subprocess.run(
        ["fish", "-c", 'complete -C "$argv[1]"', typed],
        env=environment(share),
        capture_output=True,
        text=True,
        check=True,
        timeout=DEADLINE_S,
        cwd="/",
    )
    assert done.stderr == ""
    return [answer.partition("\t")[0] for answer in done.stdout.splitlines()]


@pytest.mark.parametrize("typed", SINGLE)
def test_fish_completes(share: Path, typed: str) -> None:
    before = typed.rpartition(" ")[0]
    assert [f"{before} {answer}" for answer in fish(share, typed)] == [SINGLE[typed].rstrip()]


def test_fish_lists_the_subcommands_with_their_help(share: Path) -> None:
    assert sorted(fish(share, "kubenpuctl ")) == sorted(COMMANDS)
    assert fish(share, "kubenpuctl pods --pod ") == []
