# SPDX-License-Identifier: Apache-2.0
"""A terminal for a test: a program on a pty of its own, the screen as a person would see it, keys, the window's size.

The screen is pyte's. Everything is read in wait_for(), until a condition holds.
"""

from __future__ import annotations

import fcntl
import os
import select
import signal
import struct
import subprocess
import termios
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Self

import pyte

DEADLINE_S = 30.0


class Terminal:
    """Runs the command as the session's leader until the end of the block. `raw`: all that it wrote."""

    def __init__(
        self, command: Sequence[str], columns: int = 80, lines: int = 24, env: Mapping[str, str] | None = None
    ) -> None:
        self._command = command
        self._env = {**os.environ, "TERM": "xterm-256color", "LC_ALL": "C.UTF-8", **(env or {})}
        self._screen = pyte.Screen(columns, lines)
        self._stream = pyte.ByteStream(self._screen)
        self.raw = b""

    def __enter__(self) -> Self:
        self._fd, other = os.openpty()
        self._set_size(self._screen.columns, self._screen.lines)
        self.before: list[Any] = termios.tcgetattr(other)
        self.process = subprocess.Popen(
            ["setsid", "--ctty", *self._command],
            stdin=other,
            stdout=other,
            stderr=other,
            env=self._env,
        )
        self._other = other  # kept open: its settings are looked at when the program is gone
        return self

    def __exit__(self, *_: object) -> None:
        if self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(DEADLINE_S)
        os.close(self._fd)
        os.close(self._other)

    def send(self, keys: str) -> None:
        os.write(self._fd, keys.encode())

    def resize(self, columns: int, lines: int) -> None:
        self._screen.resize(lines, columns)
        self._screen.reset()
        self._set_size(columns, lines)

    @property
    def before_cursor(self) -> str:
        """What stands before the cursor in its line."""
        return self._screen.display[self._screen.cursor.y][: self._screen.cursor.x]

    @property
    def shown(self) -> list[str]:
        """The lines of the screen, without blanks at their ends."""
        return [line.rstrip() for line in self._screen.display]

    @property
    def text(self) -> str:
        return "\n".join(self.shown)

    @property
    def restored(self) -> bool:
        """Whether the settings of the terminal are those from before."""
        return termios.tcgetattr(self._other) == self.before

    def wait_for(self, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + DEADLINE_S
        while not condition():
            assert time.monotonic() < deadline, self.text
            self._read(0.05)

    def end(self) -> int:
        """The exit code, and everything that was written."""
        self.wait_for(lambda: self.process.poll() is not None)
        while self._read(0.05):
            pass
        return self.process.returncode

    def _read(self, seconds: float) -> bool:
        if not select.select([self._fd], [], [], seconds)[0]:
            return False
        data = os.read(self._fd, 65536)
        self.raw += data
        self._stream.feed(data)
        return True

    def _set_size(self, columns: int, lines: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", lines, columns, 0, 0))
