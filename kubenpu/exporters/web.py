# SPDX-License-Identifier: Apache-2.0
"""Serves metrics, health and a landing page over HTTP; reads only, changes nothing, knows nothing of Prometheus.

Owns the listening sockets from start() to stop(), one thread that accepts and one short-lived thread per connection.
Data comes from two callables, `render` (Accept header -> content type and body) and `not_ready` (why, "" when ready).
Refuses what a stranger could hurt it with: more than MAX_CONNECTIONS at once, a request head above MAX_HEAD_BYTES
or slower than TIMEOUT_S in total, request bodies, any method but GET and HEAD.
"""

from __future__ import annotations

import contextlib
import gzip
import html
import io
import logging
import os
import selectors
import socket
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from kubenpu.model.errors import ConfigError, KubeNpuError

log = logging.getLogger(__name__)
MAX_CONNECTIONS = 32
MAX_HEAD_BYTES = 16 * 1024
TIMEOUT_S = 10.0
TEXT = "text/plain; charset=utf-8"

Render = Callable[[str], tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Page:
    """An answer before it is compressed."""

    status: HTTPStatus
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[str], Page]]


def node_routes(telemetry_path: str, render: Render, not_ready: Callable[[], str], about: str = "") -> Routes:
    """What is served where. `about` is a line for the landing page, such as the mark of a simulated node."""

    def metrics(accept: str) -> Page:
        return Page(HTTPStatus.OK, *render(accept))

    def ready(_accept: str) -> Page:
        reason = not_ready()
        if reason:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        return _text(HTTPStatus.OK, "ready")

    return {
        "/": lambda _accept: _landing(telemetry_path, about),
        "/-/healthy": lambda _accept: _text(HTTPStatus.OK, "healthy"),
        "/-/ready": ready,
        telemetry_path: metrics,
    }


def _text(status: HTTPStatus, text: str) -> Page:
    return Page(status, TEXT, f"{text}\n".encode(errors="backslashreplace"))


def _landing(telemetry_path: str, about: str) -> Page:
    path = html.escape(telemetry_path)
    body = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>KubeNPU</title></head>\n'
        f"<body><h1>KubeNPU</h1>\n<p>{html.escape(about)}</p>\n"
        f'<p><a href="{path}">Metrics</a> <a href="/-/healthy">Healthy</a> <a href="/-/ready">Ready</a></p>\n'
        "</body></html>\n"
    )
    return Page(HTTPStatus.OK, "text/html; charset=utf-8", body.encode(errors="backslashreplace"))


class WebServer:
    """Listens from start() to stop(), once. `addresses` are `:port`, `host:port` or `[v6]:port`."""

    def __init__(self, addresses: Iterable[str], routes: Routes) -> None:
        self.routes = routes
        self._addresses = tuple(addresses)
        self._listeners: list[socket.socket] = []
        self._connections: dict[socket.socket, threading.Thread] = {}
        self._wake = -1
        self._ready = selectors.DefaultSelector()
        self._acceptor = threading.Thread(target=self._accept_all, name="web", daemon=True)

    def start(self) -> None:
        """Raises ConfigError if an address cannot be had; then nothing is left open."""
        with contextlib.ExitStack() as undo:
            for address in self._addresses:
                self._listeners.append(undo.enter_context(listen(address)))
            undo.pop_all()
        self._wake = os.eventfd(0, os.EFD_CLOEXEC)
        self._ready.register(self._wake, selectors.EVENT_READ)
        for listener in self._listeners:
            listener.setblocking(False)
            self._ready.register(listener, selectors.EVENT_READ, listener)
        self._acceptor.start()

    def stop(self) -> None:
        """Stops accepting, cuts open connections, waits for their threads. Harmless if never started, or twice."""
        if self._wake >= 0:
            os.eventfd_write(self._wake, 1)
            self._acceptor.join()
            os.close(self._wake)
            self._wake = -1
        self._ready.close()
        for connection, thread in list(self._connections.items()):
            with contextlib.suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            thread.join(TIMEOUT_S)
        for listener in self._listeners:
            listener.close()

    def describe(self) -> str:
        """The addresses really listened on, for a log line."""
        return ", ".join(_spell(listener.getsockname()) for listener in self._listeners)

    def _accept_all(self) -> None:
        while True:
            listeners = [key.data for key, _ in self._ready.select()]
            if None in listeners:
                return
            for listener in listeners:
                self._accept(listener)

    def _accept(self, listener: socket.socket) -> None:
        try:
            connection, _ = listener.accept()
        except (BlockingIOError, ConnectionError):
            return
        except OSError as error:
            log.warning("cannot accept a connection: %s", error)
            time.sleep(0.1)  # out of file descriptors: the listener stays readable, do not spin on it
            return
        if len(self._connections) >= MAX_CONNECTIONS:
            _refuse(connection)
            return
        thread = threading.Thread(target=self._serve, args=(connection,), name="web-request", daemon=True)
        self._connections[connection] = thread
        try:
            thread.start()
        except RuntimeError as error:  # the unit's TasksMax
            log.warning("cannot serve a connection: %s", error)
            del self._connections[connection]
            _refuse(connection)

    def _serve(self, connection: socket.socket) -> None:
        try:
            with contextlib.suppress(OSError):  # the client went away or was too slow: its own business
                Handler(connection, "", self)  # type: ignore[arg-type]  # it asks its server for nothing but routes
        finally:
            _close(connection)
            del self._connections[connection]


def _close(connection: socket.socket) -> None:
    """Let the client read the answer first: closing with unread input would reset the connection under it."""
    with connection, contextlib.suppress(OSError):
        connection.shutdown(socket.SHUT_WR)
        connection.settimeout(0.5)
        for _ in range(8):
            if not connection.recv(65536):
                break


def _refuse(connection: socket.socket) -> None:
    with connection, contextlib.suppress(OSError):
        connection.setblocking(False)
        connection.send(b"HTTP/1.1 503 Service Unavailable\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")


def listen(address: str) -> socket.socket:
    """A listening TCP socket; without a host on every address, IPv6 and IPv4."""
    host, port = parse_address(address)
    try:
        if host:
            family, _, _, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
            return socket.create_server(target, family=family)
        if socket.has_dualstack_ipv6():
            return socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", port))
    except (OSError, UnicodeError) as error:
        raise ConfigError(
            f"cannot listen on {address}: {getattr(error, 'strerror', None) or error}",
            "Choose another web.listen_address, or stop what uses this one",
        ) from error


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


def _spell(name: object) -> str:
    match name:
        case (str(host), int(port), *_):
            return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
        case _:
            return str(name)


class _Head(io.RawIOBase):
    """What a client sends, as far as it may: so many bytes of head, and until the deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self.renew()

    def renew(self) -> None:
        """The next request starts now."""
        self._deadline = time.monotonic() + TIMEOUT_S
        self._left = MAX_HEAD_BYTES

    @property
    def overrun(self) -> bool:
        return self._left <= 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        if self.overrun:
            return 0
        self._connection.settimeout(max(0.001, self._deadline - time.monotonic()))
        count = self._connection.recv_into(memoryview(buffer)[: self._left])  # type: ignore[arg-type]
        self._left -= count
        return count


class Handler(BaseHTTPRequestHandler):
    """One connection, several requests."""

    protocol_version = "HTTP/1.1"
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"
    server: WebServer  # type: ignore[assignment]  # its base wants a socketserver
    request: socket.socket

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._head = _Head(self.connection)
        self.rfile = io.BufferedReader(self._head)

    def handle_one_request(self) -> None:
        self._head.renew()
        super().handle_one_request()

    def do_GET(self) -> None:
        self.connection.settimeout(TIMEOUT_S)
        if self._head.overrun:
            self.request_version = self.protocol_version  # half a request line looks like HTTP/0.9
            self._send(_text(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large"), close=True)
        elif self.command not in {"GET", "HEAD"}:
            page = _text(HTTPStatus.METHOD_NOT_ALLOWED, f"only GET and HEAD are served, not {self.command}")
            self._send(page, close=True, allow="GET, HEAD")
        else:
            self._send(self._page(), close=self._has_body())

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET  # noqa: N815

    def _page(self) -> Page:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            return _text(HTTPStatus.NOT_FOUND, "not found; / says what is here")
        try:
            return route(self.headers.get("Accept", ""))
        except KubeNpuError as error:
            return _text(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _has_body(self) -> bool:
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _send(self, page: Page, close: bool, allow: str = "") -> None:
        body, encoding = page.body, ""
        if len(body) > 1024 and accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body, encoding = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        self.send_response(page.status)
        headers = {"Content-Type": page.content_type, "Content-Length": str(len(body))}
        optional = {"Content-Encoding": encoding, "Allow": allow, "Connection": "close" if close else ""}
        for name, value in {**headers, **optional}.items():
            if value:
                self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def version_string(self) -> str:
        return "kubenpu"

    def log_message(self, format: str, *args: object) -> None:
        """Scrapes are no events; what a client says is logged for debugging only, quoted."""
        log.debug("request: %r", format % args)


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named and not refused with q=0."""
    for offer in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in offer.split(";"))
        if coding == "gzip":
            return not any(p.startswith("q=") and not p[2:].strip("0.") for p in parameters)
    return False
