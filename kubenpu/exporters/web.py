# SPDX-License-Identifier: Apache-2.0
"""The web server: accepts connections and gives each a thread, from start() to stop(), once.

Owns the listening sockets, one thread that accepts and one short-lived thread per connection. The TLS handshake is
made in the connection's own thread, with a deadline, so that nobody can hold up the others. Refuses more than
MAX_CONNECTIONS at once: when all places are taken, the client that has most of them loses the one that has kept us
waiting for a request longest. The new one is refused when nobody keeps us waiting, or only who has fewer than its own
client has. Where TLS is configured not a byte is sent without it.
"""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

from kubenpu.exporters import web_request
from kubenpu.exporters.sockets import Listener, peer_user
from kubenpu.exporters.web_access import OPEN
from kubenpu.exporters.web_auth import PasswordCheck
from kubenpu.exporters.web_listen import open_listeners
from kubenpu.exporters.web_pages import Routes
from kubenpu.exporters.web_request import Handler, Site

if TYPE_CHECKING:
    from kubenpu.exporters.web_access_file import AccessFile

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 32
CHECK_SECONDS = 2.0  # how often the files of an AccessFile are looked at


class Connection:
    """A place that `client` has, an address or a user. The socket becomes another object in the TLS handshake; cut()
    may come from any thread."""

    def __init__(self, accepted: socket.socket, client: str) -> None:
        self.socket = accepted
        self.client = client
        self.is_cut = False
        self.waiting_since: float | None = time.monotonic()
        self.thread: threading.Thread | None = None

    def set_waiting(self, waiting: bool) -> None:
        self.waiting_since = time.monotonic() if waiting else None

    def cut(self) -> None:
        """Ends it under whoever serves it. The method of a TLS socket would make it a plain one, in mid-sentence."""
        self.is_cut = True
        with contextlib.suppress(OSError):
            socket.socket.shutdown(self.socket, socket.SHUT_RDWR)


class WebServer:
    """Listens on `passed` sockets if there are any, else on `addresses`. Without `access` everybody may read."""

    def __init__(
        self,
        addresses: Iterable[str],
        routes: Routes,
        access: AccessFile | None = None,
        passed: Sequence[Listener] = (),
    ) -> None:
        self._addresses = tuple(addresses)
        self._access = access
        self._site = Site(routes, lambda: access.current if access is not None else OPEN, PasswordCheck())
        self._passed = tuple(passed)
        self._listeners: list[Listener] = []
        self._connections: set[Connection] = set()
        self._wake = -1
        self._ready = selectors.DefaultSelector()
        self._acceptor = threading.Thread(target=self._accept_all, name="web", daemon=True)

    def start(self) -> None:
        """Raises ConfigError if an address cannot be had; then nothing is left open."""
        self._listeners = list(self._passed) or open_listeners(self._addresses)
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._ready.register(self._wake, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.socket.setblocking(False)
            self._ready.register(listener.socket, selectors.EVENT_READ, listener)
        self._acceptor.start()

    def stop(self) -> None:
        """Stops accepting, cuts open connections, waits for their threads. Harmless if never started, or twice."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._acceptor.join()
            os.close(self._wake)
            self._wake = -1
        self._ready.close()
        for connection in list(self._connections):
            connection.cut()
            if connection.thread is not None:
                connection.thread.join(web_request.TIMEOUT_S)
        for listener in self._listeners:
            listener.close()

    def reload(self) -> None:
        """Reads the web configuration file again, now. Raises ConfigError if it is not usable; the old one stays."""
        if self._access is not None:
            self._access.reload()

    def describe(self) -> str:
        """The addresses really listened on, for a log line."""
        return ", ".join(listener.describe() for listener in self._listeners)

    def _accept_all(self) -> None:
        pause = None if self._access is None else CHECK_SECONDS
        check_at = time.monotonic()
        while True:
            listeners = [key.data for key, _ in self._ready.select(pause)]
            if None in listeners:
                return
            if self._access is not None and time.monotonic() >= check_at:
                self._access.check()
                check_at = time.monotonic() + CHECK_SECONDS
            for listener in listeners:
                self._accept(listener.socket)

    def _accept(self, listener: socket.socket) -> None:
        try:
            accepted, address = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.warning("cannot accept a connection: %s", error)
            time.sleep(0.1)  # out of file descriptors: the listener stays readable, do not spin on it
            return
        client = str(address[0]) if isinstance(address, tuple) else f"user {peer_user(accepted)}"
        connection = Connection(accepted, client)
        if not self._has_place(connection.client):
            self._refuse(connection)
            return
        connection.thread = threading.Thread(target=self._serve, args=(connection,), name="web-request", daemon=True)
        self._connections.add(connection)
        try:
            connection.thread.start()
        except RuntimeError as error:  # the unit's TasksMax
            log.warning("cannot serve a connection: %s", error)
            self._connections.discard(connection)
            self._refuse(connection)

    def _has_place(self, client: str) -> bool:
        """Makes one if it can."""
        present = [c for c in list(self._connections) if not c.is_cut]
        if len(present) < MAX_CONNECTIONS:
            return True
        places = collections.Counter(c.client for c in present)
        waits = [((places[c.client], -since), c) for c in present if (since := c.waiting_since) is not None]
        _, greediest = max(waits, key=lambda wait: wait[0], default=((0, 0.0), None))
        if greediest is None or places[greediest.client] < places[client]:
            return False
        greediest.cut()
        return True

    def _serve(self, connection: Connection) -> None:
        try:
            with contextlib.suppress(OSError):  # the client went away or was too slow: its own business
                self._shake_hands(connection)
                Handler(connection.socket, connection.client, self._site, connection.set_waiting).run()
        finally:
            _close(connection.socket)
            self._connections.discard(connection)

    def _shake_hands(self, connection: Connection) -> None:
        """TLS, if configured now. Raises OSError when it does not come to pass; nothing was answered then."""
        context = self._site.access().tls
        if context is None:
            return
        deadline = web_request.Deadline()
        secured = context.wrap_socket(connection.socket, server_side=True, do_handshake_on_connect=False)
        connection.socket = secured
        if connection.is_cut:
            raise ConnectionAbortedError
        deadline.apply(secured)
        try:
            secured.do_handshake()
        except OSError as error:
            log.debug("no TLS with %s: %s", connection.client, error)
            raise

    def _refuse(self, connection: Connection) -> None:
        with connection.socket, contextlib.suppress(OSError):
            if self._site.access().tls is None:
                connection.socket.setblocking(False)
                connection.socket.send(
                    b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n"
                )


def _close(connection: socket.socket) -> None:
    """Let the client read the answer first: closing with unread input would reset the connection under it."""
    with connection, contextlib.suppress(OSError, ValueError):
        connection.settimeout(0.5)
        unwrap = getattr(connection, "unwrap", None)
        if unwrap is not None:
            unwrap()  # says goodbye in TLS and waits for the other's
        connection.shutdown(socket.SHUT_WR)
        for _ in range(8):
            if not connection.recv(65536):
                break
