# SPDX-License-Identifier: Apache-2.0
"""A display for guests whose GPU draws: an X server in memory, which only the guest's QEMU may use.

QEMU's virtio-gpu with 3D has the host's OpenGL draw for the guest and reaches it through a window (egl-headless wants
a render node of the host). Where there is no GPU Mesa draws in software. Owns the server and the directory with its
key until `close`. Needs Xvfb and xauth.
"""

from __future__ import annotations

import os
import secrets
import subprocess
import tempfile
from pathlib import Path

GUESTS = ("trixie-gl",)  # each boots only when it is chosen


class XServer:
    """A running server. `environment` is what a program needs to find it and to be let in."""

    def __init__(self) -> None:
        self._directory = tempfile.TemporaryDirectory(prefix="kubenpu-display-")
        self._key = Path(self._directory.name, "key")
        key = secrets.token_hex(16)
        self._let_in(":0", key)  # the server takes any entry, a client looks for that of its display
        told, tell = os.pipe()
        command = ["Xvfb", "-displayfd", str(tell), "-auth", str(self._key), "-screen", "0", "640x480x24"]
        command += ["-nolisten", "tcp", "+extension", "GLX"]
        self._server = subprocess.Popen(command, pass_fds=[tell], stdin=subprocess.DEVNULL)
        os.close(tell)
        with os.fdopen(told) as pipe:
            number = pipe.readline().strip()
        if not number:
            self.close()
            raise ConnectionError("Xvfb did not start")
        self._let_in(f":{number}", key)
        self.environment = {"DISPLAY": f":{number}", "XAUTHORITY": str(self._key)}

    def close(self) -> None:
        self._server.terminate()
        self._server.wait()
        self._directory.cleanup()

    def _let_in(self, display: str, key: str) -> None:
        subprocess.run(["xauth", "-q", "-f", self._key, "add", display, ".", key], check=True)
