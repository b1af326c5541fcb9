# SPDX-License-Identifier: Apache-2.0
"""One connection of a client: reads requests, asks who it is, answers. Owned by the thread that serves it.

Refuses what a stranger could hurt us with: a request head above MAX_HEAD_BYTES or slower than TIMEOUT_S in total,
request bodies, any method but GET and HEAD, a client that takes longer than TIMEOUT_S to read its answer. Where users
are configured nothing is told without a password, not even which paths there are.
"""

from __future__ import annotations

import gzip
import io
import logging
import socket
import struct
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler

from kubenpu.exporters.web_access import Access
from kubenpu.exporters.web_auth import PasswordCheck, Verdict
from kubenpu.exporters.web_pages import TEXT, Page, Routes, accepts_gzip, text_page
from kubenpu.model.errors import KubeNpuError

log = logging.getLogger(__name__)
MAX_HEAD_BYTES = 16 * 1024
TIMEOUT_S = 10.0
RESET_ON_CLOSE = struct.pack("ii", 1, 0)
CHALLENGE = 'Basic realm="kubenpu", charset="UTF-8"'


@dataclass(frozen=True, slots=True)
class Site:
    """What all connections have in common; `access` gives what is in force now."""

    routes: Routes
    access: Callable[[], Access]
    passwords: PasswordCheck


class Deadline:
    """A moment in the future that a socket operation must not pass."""

    def __init__(self) -> None:
        self.renew()

    def renew(self) -> None:
        self._at = time.monotonic() + TIMEOUT_S

    def apply(self, connection: socket.socket) -> None:
        """The next operation may take what is left. Raises TimeoutError when nothing is."""
        left = self._at - time.monotonic()
        if left <= 0:
            raise TimeoutError
        connection.settimeout(left)


class _Head(io.RawIOBase):
    """What a client sends, as far as it may: so many bytes of head, and until the deadline."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = Deadline()
        self._left = MAX_HEAD_BYTES

    def renew(self) -> None:
        """The next request starts now."""
        self._deadline.renew()
        self._left = MAX_HEAD_BYTES

    @property
    def overrun(self) -> bool:
        return self._left <= 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object, /) -> int:
        if self.overrun:
            return 0
        self._deadline.apply(self._connection)
        count = self._connection.recv_into(memoryview(buffer)[: self._left])  # type: ignore[arg-type]
        self._left -= count
        return count


class _Answer(io.BufferedIOBase):
    """What we send, until the deadline. Not sendall(): that of a TLS socket has a time limit for each record only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = Deadline()

    def renew(self) -> None:
        """The next answer starts now."""
        self._deadline.renew()

    def writable(self) -> bool:
        return True

    def write(self, data: bytes, /) -> int:  # type: ignore[override]  # bytes is all that we write
        rest = memoryview(data)
        try:
            while rest:
                self._deadline.apply(self._connection)
                rest = rest[self._connection.send(rest) :]
        except TimeoutError:  # else the kernel would keep the rest, for as long as the client likes
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            raise
        return len(data)


class Handler(BaseHTTPRequestHandler):
    """Several requests, one after the other. `on_wait` is told when we begin (True) and cease to wait for a head."""

    protocol_version = "HTTP/1.1"
    error_content_type = TEXT
    error_message_format = "%(code)d %(message)s\n"
    server: Site  # type: ignore[assignment]  # its base wants a socketserver
    request: socket.socket

    def __init__(self, connection: socket.socket, client: str, site: Site, on_wait: Callable[[bool], None]) -> None:
        self._on_wait = on_wait
        super().__init__(connection, (client, 0), site)  # type: ignore[arg-type]  # it asks its server for nothing

    def setup(self) -> None:
        super().setup()
        self.rfile.close()
        self._head, self._answer = _Head(self.connection), _Answer(self.connection)
        self.rfile = io.BufferedReader(self._head)
        self.wfile = self._answer

    def handle_one_request(self) -> None:
        self._head.renew()
        self._answer.renew()  # for the errors that the base class finds by itself
        self._on_wait(True)
        super().handle_one_request()

    def do_GET(self) -> None:
        self._on_wait(False)
        if self._head.overrun:
            self.request_version = self.protocol_version  # half a request line looks like HTTP/0.9
            page = text_page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large")
            return self._send(page, close=True)
        refused = self._refuse_stranger()
        if refused is not None:
            return self._send(*refused)
        if self.command not in {"GET", "HEAD"}:
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, f"only GET and HEAD are served, not {self.command}")
            return self._send(page, close=True, more={"Allow": "GET, HEAD"})
        return self._send(self._page(), close=self._has_body())

    do_HEAD = do_POST = do_PUT = do_PATCH = do_DELETE = do_OPTIONS = do_TRACE = do_CONNECT = do_GET  # noqa: N815

    def _refuse_stranger(self) -> tuple[Page, bool, Mapping[str, str]] | None:
        """What to answer whoever does not say who it is, or not rightly. None: come in."""
        users = self.server.access().users
        if not users:
            return None
        authorization = self.headers.get("Authorization", "")
        verdict = self.server.passwords.check(users, authorization, self.client_address[0])
        if verdict is Verdict.GRANTED:
            return None
        if verdict is Verdict.BUSY:
            busy = text_page(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong passwords, try again later")
            return busy, True, {"Retry-After": "1"}
        wrong = text_page(HTTPStatus.UNAUTHORIZED, "a user name and password are needed")
        return wrong, self._has_body(), {"WWW-Authenticate": CHALLENGE}

    def _page(self) -> Page:
        route = self.server.routes.get(self.path.partition("?")[0])
        if route is None:
            return text_page(HTTPStatus.NOT_FOUND, "not found; / says what is here")
        try:
            return route(self.headers.get("Accept", ""))
        except KubeNpuError as error:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _has_body(self) -> bool:
        return self.headers.get("Content-Length", "0") != "0" or "Transfer-Encoding" in self.headers

    def _send(self, page: Page, close: bool, more: Mapping[str, str] | None = None) -> None:
        body, encoding = page.body, ""
        if len(body) > 1024 and accepts_gzip(self.headers.get("Accept-Encoding", "")):
            body, encoding = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        self._answer.renew()
        self.send_response(page.status)
        headers = {"Content-Type": page.content_type, "Content-Length": str(len(body)), "Content-Encoding": encoding}
        headers |= {"Connection": "close" if close else "", **(more or {}), **self.server.access().headers}
        for name, value in headers.items():
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
