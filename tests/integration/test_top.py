# SPDX-License-Identifier: Apache-2.0
"""`kubenpuctl top` on a real terminal, with a real bus: what a person sees, presses, and is left with afterwards."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.view import Usage, View
from tests.fakes.dbus_node import IGPU, OFF, POD, VIEW, FakeNode, counts, many
from tests.fakes.private_bus import PrivateBus, Serving
from tests.fakes.terminal import DEADLINE_S, Terminal

ROOT = Path(__file__).parents[2]
EVIL = Owner(OwnerKind.POD, "z", "a\x1b]0;owned\x07\x1b[2J\nb\x9b", "日本語")
LEAVE, SHOW_CURSOR = b"\x1b[?1049l", b"\x1b[?25h"
COLOUR = re.compile(rb"\x1b\[[0-9;]*\b3[0-7]m")


def command(bus: PrivateBus, *words: str) -> list[str]:
    return [sys.executable, "-m", "kubenpu.cli.main", "top", "--bus", bus.address, "--interval", "1", *words]


@contextmanager
def top(bus: PrivateBus, *words: str, env: dict[str, str] | None = None, columns: int = 80) -> Iterator[Terminal]:
    """In its first frame."""
    with Terminal(command(bus, *words), columns, env={"PYTHONPATH": str(ROOT), **(env or {})}) as terminal:
        terminal.wait_for(lambda: "q quit" in terminal.shown[-1])
        yield terminal


def show(served: Serving, view: View) -> None:
    served.node.shown = view
    served.changed()


def usage(owner: Owner, *calls: int) -> Usage:
    return Usage(owner, IGPU, "i915", counts(*calls), 1700000100.0, True)


def line_of(terminal: Terminal, word: str) -> list[str]:
    return next((line.split() for line in terminal.shown if word in line), [])


def test_it_shows_what_happens(bus: PrivateBus, served: Serving) -> None:
    with top(bus) as terminal:
        assert terminal.shown[0].startswith("node-1  kubenpud 1.2.3  drm_ioctl fentry  counting since 2023-11-14")
        assert "0000:00:02.0 i915" in terminal.shown[1] and terminal.shown[1].endswith("npu.0 - -")
        assert line_of(terminal, "shop/web-0/main")[2:4] == ["-", "-"]  # one sample only
        terminal.wait_for(lambda: line_of(terminal, "shop/web-0/main")[2:4] == ["0", "0"])
        more = tuple(replace(u, counts=counts(1000, 20, 0, 0, 7)) if u.owner == POD else u for u in VIEW.usage)
        show(served, replace(VIEW, usage=more))
        terminal.wait_for(lambda: line_of(terminal, "shop/web-0/main")[6:] == ["1027", "102"])
        terminal.send("q")
        assert terminal.end() == 0
        assert terminal.restored
    assert LEAVE in terminal.raw and SHOW_CURSOR in terminal.raw


def test_it_follows_the_size_of_the_window(bus: PrivateBus, served: Serving) -> None:
    show(served, many(60))
    with top(bus) as terminal:
        for columns, lines in ((40, 10), (200, 50), (20, 4), (80, 24)):
            terminal.resize(columns, lines)
            terminal.wait_for(lambda: "q quit" in terminal.shown[-1] and terminal.shown[0].startswith("node-1"))
            assert sum(line.startswith("team-") for line in terminal.shown) == max(lines - 5, 0)
            assert ("FAILED" in terminal.text) == (columns >= 80)
        terminal.send("q")
        assert terminal.end() == 0


def names(terminal: Terminal) -> list[str]:
    return [line.split("/")[1] for line in terminal.shown if line.startswith("team-000/")]


def test_keys(bus: PrivateBus, served: Serving) -> None:
    show(served, many(40))
    with top(bus, "--sort", "name", columns=120) as terminal:
        terminal.wait_for(lambda: names(terminal)[:2] == ["worker-00000", "worker-00001"])
        terminal.send("r")
        terminal.wait_for(lambda: names(terminal)[0] == "worker-00039")
        terminal.send("t")
        terminal.wait_for(lambda: "by total" in terminal.text and names(terminal)[0] == "worker-00039")
        terminal.send("\x1bOF")  # End
        terminal.wait_for(lambda: names(terminal)[-1] == "worker-00000")
        terminal.send("\x1bOH")  # Home
        terminal.wait_for(lambda: names(terminal)[0] == "worker-00039")
        terminal.send("\x1bOB")  # down
        terminal.wait_for(lambda: names(terminal)[0] == "worker-00038")
        terminal.send("/0007q")  # q is a letter now
        terminal.wait_for(lambda: terminal.shown[-1].startswith("Filter: 0007q_"))
        terminal.send("\x7f\r")
        terminal.wait_for(lambda: names(terminal) == ["worker-00007"] and 'only "0007"' in terminal.text)
        terminal.send("/\x1b")
        terminal.wait_for(lambda: len(names(terminal)) == 19)
        terminal.send("p")
        terminal.wait_for(lambda: "PAUSED" in terminal.text)
        asked = served.node.view_count
        terminal.send("p")
        terminal.wait_for(lambda: "every 1 s" in terminal.text and served.node.view_count > asked)
        terminal.send("q")
        assert terminal.end() == 0


@pytest.mark.parametrize(
    ("end", "code"),
    [
        (lambda terminal: terminal.process.send_signal(signal.SIGTERM), 143),
        (lambda terminal: terminal.process.send_signal(signal.SIGHUP), 129),
        (lambda terminal: terminal.send("\x03"), 130),
    ],
    ids=["SIGTERM", "SIGHUP", "Ctrl-C"],
)
def test_the_terminal_is_given_back(
    bus: PrivateBus, served: Serving, end: Callable[[Terminal], None], code: int
) -> None:
    with top(bus) as terminal:
        assert not terminal.restored
        end(terminal)
        assert terminal.end() == code
        assert terminal.restored
    assert terminal.raw.rindex(LEAVE) > terminal.raw.rindex(b"q quit")
    assert SHOW_CURSOR in terminal.raw
    assert b"Traceback" not in terminal.raw


def test_an_error_gives_the_terminal_back(bus: PrivateBus, served: Serving) -> None:
    script = (
        "import sys; from kubenpu.cli import main, top_screen\n"
        "def fail(*_): raise RuntimeError('on purpose')\n"
        "top_screen.press = fail\n"
        "main.main(sys.argv[1:])"
    )
    words = ["top", "--bus", bus.address]
    with Terminal([sys.executable, "-c", script, *words], env={"PYTHONPATH": str(ROOT)}) as terminal:
        assert terminal.end() == 1
        assert terminal.restored
    assert b"on purpose" in terminal.raw[terminal.raw.rindex(LEAVE) :]


def test_it_can_be_stopped_and_goes_on(bus: PrivateBus, served: Serving) -> None:
    shell = ["bash", "--norc", "--noprofile", "-i"]
    with Terminal(shell, env={"PYTHONPATH": str(ROOT), "PS1": "prompt> "}) as terminal:
        terminal.wait_for(lambda: "prompt>" in terminal.text)
        terminal.send(" ".join(command(bus)) + "\n")
        terminal.wait_for(lambda: "q quit" in terminal.shown[-1])
        terminal.send("\x1a")
        terminal.wait_for(lambda: "Stopped" in terminal.text)
        assert LEAVE in terminal.raw
        terminal.resize(60, 12)
        terminal.send("fg\n")
        terminal.wait_for(lambda: terminal.shown[0].startswith("node-1") and "q quit" in terminal.shown[-1])
        terminal.send("q")
        terminal.wait_for(lambda: terminal.raw.endswith(b"prompt> "))
        terminal.send("exit 7\n")
        assert terminal.end() == 7


def test_names_reach_the_terminal_as_text_only(bus: PrivateBus, served: Serving) -> None:
    show(served, replace(VIEW, usage=(usage(EVIL, 1),), node="node\x1b[31m"))
    with top(bus, env={"NO_COLOR": "1"}) as terminal:
        terminal.resize(160, 24)
        terminal.wait_for(lambda: "日 本 語" in terminal.text or "日本語" in terminal.text)
        assert "owned" in terminal.text
        assert terminal.shown[0].startswith("node")
        terminal.send("q")
        assert terminal.end() == 0
    assert b"]0;owned" not in terminal.raw.replace(b"\\x1b]0;owned", b"")
    assert b"\x07" not in terminal.raw
    assert b"\x9b" not in terminal.raw.replace("日本語".encode(), b"")


@pytest.mark.parametrize(("env", "coloured"), [({}, True), ({"NO_COLOR": "1"}, False), ({"TERM": "vt100"}, False)])
def test_colour_only_where_it_is_wanted(bus: PrivateBus, served: Serving, env: dict[str, str], coloured: bool) -> None:
    show(served, OFF)  # its title is an alarm
    with top(bus, env=env) as terminal:
        terminal.wait_for(lambda: "drm_ioctl off" in terminal.text)
        terminal.send("q")
        assert terminal.end() == 0
    assert bool(COLOUR.search(terminal.raw)) == coloured


@pytest.mark.parametrize("kind", ["dumb", "no-such-terminal", ""])
def test_a_terminal_that_cannot_do_it_is_told_so(bus: PrivateBus, served: Serving, kind: str) -> None:
    with Terminal(command(bus), env={"PYTHONPATH": str(ROOT), "TERM": kind}) as terminal:
        assert terminal.end() == 2
        assert terminal.restored
    assert b"kubenpuctl top --once" in terminal.raw
    assert b"Traceback" not in terminal.raw and b"\x1b" not in terminal.raw


def run(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        words, env={"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False, timeout=DEADLINE_S
    )


def test_a_pipe_gets_one_frame(bus: PrivateBus, served: Serving) -> None:
    refused = run(*command(bus))
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "top needs a terminal" in refused.stderr
    show(served, replace(VIEW, simulated=True))
    done = run(*command(bus, "--once"))
    assert done.returncode == 0
    lines = done.stdout.splitlines()
    assert lines[0].startswith("SIMULATED NODE  node-1")
    assert lines[3].split()[:3] == ["NAME", "DEVICE", "SUBMIT/S"]
    assert len(lines) == 4 + len(VIEW.usage)
    assert "simulated node" in done.stderr
    assert "\x1b" not in done.stdout


def test_without_kubenpud_it_says_what_to_start(bus: PrivateBus) -> None:
    with Terminal(command(bus), env={"PYTHONPATH": str(ROOT)}) as terminal:
        assert terminal.end() == 3
    assert b"systemctl start kubenpud" in terminal.raw
    assert b"\x1b" not in terminal.raw


def test_kubenpud_may_go_and_come_back(bus: PrivateBus, node: FakeNode) -> None:
    with Serving(node, bus.address):
        terminal = Terminal(command(bus), env={"PYTHONPATH": str(ROOT)})
        terminal.__enter__()
        terminal.wait_for(lambda: "every 1 s" in terminal.text)
    try:
        terminal.wait_for(lambda: "Reconnecting: kubenpud is not on the message bus" in terminal.text)
        assert "shop/web-0/main" in terminal.text
        with Serving(node, bus.address):
            terminal.wait_for(lambda: "every 1 s" in terminal.text)
            terminal.send("q")
            assert terminal.end() == 0
    finally:
        terminal.__exit__()


def test_a_slow_kubenpud_does_not_keep_keys_waiting(bus: PrivateBus, served: Serving) -> None:
    with top(bus) as terminal:
        served.node.hold = threading.Event()
        terminal.wait_for(lambda: served.node.view_count > 0)
        terminal.send("n")
        terminal.wait_for(lambda: "by name" in terminal.text)
        served.node.hold.set()
        terminal.send("q")
        assert terminal.end() == 0
