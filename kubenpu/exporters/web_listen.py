# SPDX-License-Identifier: Apache-2.0
"""Where metrics are listened for: TCP, Unix sockets, and sockets that systemd passes.

Opens sockets and hands them over as Listener. Refuses to take an address that somebody still listens on, and to bind
anything of its own beside passed sockets.
"""

from __future__ import annotations

import contextlib
import os
import socket
from collections.abc import Iterable, Mapping
from pathlib import Path

from kubenpu.exporters.sockets import BACKLOG, FIRST_PASSED_FD, UNIX, Listener, listen_unix, passed_listeners
from kubenpu.model.errors import AddressError, ConfigError

UNIX_MODE = 0o660
SYSTEMD_NAME = "metrics"
FAMILIES = frozenset({socket.AF_INET, socket.AF_INET6, socket.AF_UNIX})


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
    """A Unix socket for `unix:/path`, else TCP; without a host on every address, IPv6 and IPv4. Raises AddressError."""
    try:
        if address.startswith(UNIX):
            return _listen_unix(Path(address.removeprefix(UNIX)))
        return Listener(_listen_tcp(*parse_address(address)))
    except (OSError, UnicodeError) as error:
        raise AddressError(
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
    if not path.is_absolute():
        raise ConfigError(f"{UNIX}{path} is no address to listen on", "Write unix:/run/kubenpu/metrics.sock")
    return listen_unix(path, UNIX_MODE)


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


def passed_for_metrics(
    required: bool = False, environment: Mapping[str, str] = os.environ, first_fd: int = FIRST_PASSED_FD
) -> list[Listener]:
    """The sockets that systemd passed for metrics, none if it passed none: then `required` makes that an error."""
    found = passed_listeners(SYSTEMD_NAME, FAMILIES, True, environment, first_fd)
    if required and not found:
        raise ConfigError(
            f"web.systemd_socket is set, but systemd passed no socket called {SYSTEMD_NAME}",
            "Enable kubenpud-metrics.socket, or take the setting away",
        )
    return found
