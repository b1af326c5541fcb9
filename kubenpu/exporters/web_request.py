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

from kubenpu.exporters.web_access import Access
from kubenpu.exporters.web_auth import PasswordCheck, Verdict
from kubenpu.exporters.web_head import Head, HeadError, parse_head
from kubenpu.exporters.web_pages import Page, Routes, accepts_gzip, text_page
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


class _Input(io.RawIOBase):
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


class _Answer:
    """What we send, until the deadline. Not sendall(): that of a TLS socket has a time limit for each record only."""

    def __init__(self, connection: socket.socket) -> None:
        self._connection = connection
        self._deadline = Deadline()

    def renew(self) -> None:
        """The next answer starts now."""
        self._deadline.renew()

    def write(self, data: bytes) -> None:
        rest = memoryview(data)
        try:
            while rest:
                self._deadline.apply(self._connection)
                rest = rest[self._connection.send(rest) :]
        except TimeoutError:  # else the kernel would keep the rest, for as long as the client likes
            self._connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, RESET_ON_CLOSE)
            raise


class Handler:
    """Several requests, one after the other. `on_wait` is told when we begin (True) and cease to wait for a head."""

    def __init__(self, connection: socket.socket, client: str, site: Site, on_wait: Callable[[bool], None]) -> None:
        self._client = client
        self._site = site
        self._on_wait = on_wait
        self._input, self._answer = _Input(connection), _Answer(connection)
        self._reader = io.BufferedReader(self._input)

    def run(self) -> None:
        """Until one of the two wants no more. Raises OSError when the client is gone or too slow."""
        while self._serve_one():
            pass

    def _serve_one(self) -> bool:
        """Whether another request may follow."""
        self._input.renew()
        self._on_wait(True)
        lines = self._read_lines()
        self._on_wait(False)
        if self._input.overrun:
            page = text_page(HTTPStatus.REQUEST_HEADER_FIELDS_TOO_LARGE, "the request head is too large")
            return self._send(page, last=True)
        if not lines:
            return False
        try:
            head = parse_head(lines)
        except HeadError as error:
            log.debug("request from %s: %r: %s", self._client, lines[0], error)
            return self._send(text_page(error.status, str(error)), last=True)
        log.debug("request from %s: %r", self._client, lines[0])
        return self._respond(head)

    def _read_lines(self) -> list[bytes]:
        """The lines of a head; none when the client leaves before its end."""
        lines: list[bytes] = []
        for sent in iter(self._reader.readline, b""):
            line = sent.rstrip(b"\r\n")
            if not line:
                return lines
            lines.append(line)
        return []

    def _respond(self, head: Head) -> bool:
        refused = self._refuse_stranger(head)
        if refused is not None:
            return self._send(*refused, head=head)
        if head.method not in {"GET", "HEAD"}:
            page = text_page(HTTPStatus.METHOD_NOT_ALLOWED, f"only GET and HEAD are served, not {head.method}")
            return self._send(page, last=True, more={"Allow": "GET, HEAD"})
        return self._send(self._page(head), last=head.has_body, head=head)

    def _refuse_stranger(self, head: Head) -> tuple[Page, bool, Mapping[str, str]] | None:
        """What to answer whoever does not say who it is, or not rightly. None: come in."""
        users = self._site.access().users
        if not users:
            return None
        verdict = self._site.passwords.check(users, head.headers.get("authorization", ""), self._client)
        if verdict is Verdict.GRANTED:
            return None
        if verdict is Verdict.BUSY:
            busy = text_page(HTTPStatus.TOO_MANY_REQUESTS, "too many wrong passwords, try again later")
            return busy, True, {"Retry-After": "1"}
        wrong = text_page(HTTPStatus.UNAUTHORIZED, "a user name and password are needed")
        return wrong, head.has_body, {"WWW-Authenticate": CHALLENGE}

    def _page(self, head: Head) -> Page:
        route = self._site.routes.get(head.path.partition("?")[0])
        if route is None:
            return text_page(HTTPStatus.NOT_FOUND, "not found; / says what is here")
        try:
            return route(head.headers.get("accept", ""))
        except KubeNpuError as error:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, str(error))

    def _send(self, page: Page, last: bool, more: Mapping[str, str] | None = None, head: Head | None = None) -> bool:
        """Answers, in full unless `head` asks for less. Whether another request may follow."""
        last = last or head is None or head.is_last
        body, encoding = page.body, ""
        if head is not None and len(body) > 1024 and accepts_gzip(head.headers.get("accept-encoding", "")):
            body, encoding = gzip.compress(body, compresslevel=1, mtime=0), "gzip"
        headers = {"Server": "kubenpu", "Date": time.strftime("%a, %d %b %Y %H:%M:%S GMT", time.gmtime())}
        headers |= {"Content-Type": page.content_type, "Content-Length": str(len(body)), "Content-Encoding": encoding}
        headers |= {"Vary": "Accept, Accept-Encoding"}
        headers |= {"Connection": "close" if last else "", **(more or {}), **self._site.access().headers}
        lines = [f"HTTP/1.1 {page.status.value} {page.status.phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items() if value]
        self._answer.renew()
        self._answer.write("\r\n".join((*lines, "\r\n")).encode("latin-1"))
        if head is None or head.method != "HEAD":
            self._answer.write(body)
        return not last
