# SPDX-License-Identifier: Apache-2.0
"""Listening sockets of every interface: Unix sockets with their files, and those that systemd passes by name.

A Listener owns its socket and, if it made one, the socket's file. What systemd passed belongs to systemd: its file
stays. Refuses to take a file that somebody still listens on, and to remove one that is no socket.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubenpu.model.errors import ConfigError

UNIX = "unix:"
FIRST_PASSED_FD = 3
MAX_PASSED = 64
BACKLOG = 128


@dataclass(frozen=True, slots=True)
class Listener:
    """A listening socket. `made`: the file it made, by path and inode number, to be removed in the end."""

    socket: socket.socket
    made: tuple[Path, int] | None = None

    def close(self) -> None:
        """The file goes first: whoever finds none knows that nobody listens. Another's file of that name stays."""
        if self.made is not None:
            path, inode = self.made
            with contextlib.suppress(OSError):
                if path.lstat().st_ino == inode:
                    path.unlink()
        self.socket.close()

    def describe(self) -> str:
        """The address as the settings spell it."""
        match self.socket.getsockname():
            case (str(host), int(port), *_):
                return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
            case name:
                return f"{UNIX}{name}"


def peer_user(accepted: socket.socket) -> int:
    """The user id that the kernel says the other side of a Unix socket belongs to."""
    credentials = accepted.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, struct.calcsize("3i"))
    return int(struct.unpack("3i", credentials)[1])


def listen_unix(path: Path, mode: int) -> Listener:
    """Raises OSError. Nobody can connect before listen(), so the mode is right from the first connection on."""
    _remove_stale(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(str(path))
        path.chmod(mode)
        server.listen(BACKLOG)
        return Listener(server, (path, path.lstat().st_ino))
    except OSError:
        server.close()
        raise


def _remove_stale(path: Path) -> None:
    """Removes the socket file of a process that is gone; leaves everything else for bind() to complain about."""
    try:
        if not stat.S_ISSOCK(path.lstat().st_mode):
            return
    except FileNotFoundError:
        return
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.setblocking(False)
        try:
            client.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
        except BlockingIOError:
            return  # somebody listens and is busy


# ---- sockets from systemd ----


def passed_listeners(
    name: str,
    families: frozenset[socket.AddressFamily],
    unnamed: bool = False,
    environment: Mapping[str, str] = os.environ,
    first_fd: int = FIRST_PASSED_FD,
) -> list[Listener]:
    """The sockets that were passed under this name, with `unnamed` also those without any, as not from systemd.

    Raises ConfigError for one that does not listen, or is of another family than these.
    """
    numbers = [first_fd + index for index in passed_indexes(name, unnamed, environment, os.getpid())]
    return [Listener(_adopt(number, families)) for number in numbers]


def passed_indexes(name: str, unnamed: bool, environment: Mapping[str, str], pid: int) -> list[int]:
    """Which of the passed sockets have this name."""
    count = environment.get("LISTEN_FDS", "")
    ours = environment.get("LISTEN_PID") == str(pid) and re.fullmatch("[0-9]{1,3}", count)
    if not ours or int(count) > MAX_PASSED:
        return []
    names = environment.get("LISTEN_FDNAMES")
    if names is None:
        return list(range(int(count))) if unnamed else []
    return [index for index, each in enumerate(names.split(":")[: int(count)]) if each == name]


def _adopt(number: int, families: frozenset[socket.AddressFamily]) -> socket.socket:
    """The descriptor as a socket, if it is what it has to be. Left open otherwise: it may be somebody else's."""
    wrong = ""
    try:
        adopted = socket.socket(fileno=number)
    except OSError as error:
        raise ConfigError(f"file descriptor {number} passed by systemd is no socket: {error.strerror}") from error
    if adopted.type != socket.SOCK_STREAM or not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "does not listen for connections"
    elif adopted.family not in families:
        wrong = "is of another family than " + " and ".join(sorted(family.name for family in families))
    if wrong:
        adopted.detach()
        raise ConfigError(f"the socket {number} passed by systemd {wrong}", "Use ListenStream= and Accept=no")
    adopted.set_inheritable(False)
    return adopted
