# SPDX-License-Identifier: Apache-2.0
"""Where metrics are listened for: TCP, Unix sockets, and sockets that systemd passes.

Opens sockets and hands them over as Listener, which owns its socket and, if it made one, the socket's file. What
systemd passed belongs to systemd: its file stays. Refuses to take an address that somebody still listens on, to
remove a file that is no socket, and to bind anything of its own beside passed sockets.
"""

from __future__ import annotations

import contextlib
import os
import re
import socket
import stat
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kubenpu.model.errors import ConfigError

UNIX = "unix:"
UNIX_MODE = 0o660
SYSTEMD_NAME = "metrics"
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


def open_listeners(addresses: Iterable[str]) -> list[Listener]:
    """All of them, or ConfigError and none left open."""
    found: list[Listener] = []
    with contextlib.ExitStack() as undo:
        for address in addresses:
            found.append(listen(address))
            undo.callback(found[-1].close)
        undo.pop_all()
    return found


def listen(address: str) -> Listener:
    """A Unix socket for `unix:/path`, else TCP; without a host on every address, IPv6 and IPv4."""
    try:
        if address.startswith(UNIX):
            return _listen_unix(Path(address.removeprefix(UNIX)))
        return Listener(_listen_tcp(*parse_address(address)))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}",
            "Choose another web.listen_address, or stop what uses this one",
        ) from error


def _listen_tcp(host: str, port: int) -> socket.socket:
    if host:
        family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server(target, family=family, backlog=BACKLOG)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True, backlog=BACKLOG)
    return socket.create_server(("", port), backlog=BACKLOG)


def _listen_unix(path: Path) -> Listener:
    """Nobody can connect before listen(), so the mode is right from the first connection on."""
    if not path.is_absolute():
        raise ConfigError(f"{UNIX}{path} is no address to listen on", "Write unix:/run/kubenpu/metrics.sock")
    _remove_stale(path)
    server = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        server.bind(str(path))
        path.chmod(UNIX_MODE)
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


def parse_address(address: str) -> tuple[str, int]:
    """Host ("" for all) and port of `:port`, `host:port` or `[v6]:port`."""
    host, colon, port = address.rpartition(":")
    bracketed = host.startswith("[") and host.endswith("]")
    bare = host[1:-1] if bracketed else host
    good_host = bare.isprintable() and bare.isascii() and (bracketed or ":" not in bare) and " " not in bare
    if not (colon and good_host and port.isascii() and port.isdigit() and len(port) <= 5):
        raise ConfigError(f"{address!r} is no address to listen on", "Write :10074, 127.0.0.1:10074 or [::1]:10074")
    if int(port) > 65535:
        raise ConfigError(f"{address} has a port above 65535")
    return bare, int(port)


# ---- sockets from systemd ----


def passed_listeners(
    required: bool = False, environment: Mapping[str, str] = os.environ, first_fd: int = FIRST_PASSED_FD
) -> list[Listener]:
    """The sockets that systemd passed for metrics, none if it passed none: then `required` makes that an error."""
    numbers = [first_fd + index for index in passed_indexes(environment, os.getpid())]
    found = [Listener(_adopt(number)) for number in numbers]
    if required and not found:
        raise ConfigError(
            f"web.systemd_socket is set, but systemd passed no socket called {SYSTEMD_NAME}",
            "Enable kubenpud-metrics.socket, or take the setting away",
        )
    return found


def passed_indexes(environment: Mapping[str, str], pid: int) -> list[int]:
    """Which of the passed sockets are ours: those of our name; all of them when there are no names at all."""
    count = environment.get("LISTEN_FDS", "")
    ours = environment.get("LISTEN_PID") == str(pid) and re.fullmatch("[0-9]{1,3}", count)
    if not ours or int(count) > MAX_PASSED:
        return []
    names = environment.get("LISTEN_FDNAMES")
    if names is None:
        return list(range(int(count)))
    return [index for index, name in enumerate(names.split(":")[: int(count)]) if name == SYSTEMD_NAME]


def _adopt(number: int) -> socket.socket:
    """The descriptor as a socket, if it is what it has to be. Left open otherwise: it may be somebody else's."""
    wrong = ""
    try:
        adopted = socket.socket(fileno=number)
    except OSError as error:
        raise ConfigError(f"file descriptor {number} passed by systemd is no socket: {error.strerror}") from error
    if adopted.type != socket.SOCK_STREAM or not adopted.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
        wrong = "does not listen for connections"
    elif adopted.family not in {socket.AF_INET, socket.AF_INET6, socket.AF_UNIX}:
        wrong = "is neither TCP nor Unix"
    if wrong:
        adopted.detach()
        raise ConfigError(f"the socket {number} passed by systemd {wrong}", "Use ListenStream= and Accept=no")
    adopted.set_inheritable(False)
    return adopted
