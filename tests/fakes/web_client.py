# SPDX-License-Identifier: Apache-2.0
"""A client of the web server for tests: over plain HTTP or TLS, well-formed or not. A new connection each time."""

from __future__ import annotations

import base64
import http.client
import socket
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from tests.fakes.sim_metrics import free_url


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes


@dataclass
class Client:
    """Asks the server at `port`; `context` None is plain HTTP."""

    port: int
    context: ssl.SSLContext | None = None

    def ask(self, path: str = "/metrics", method: str = "GET", headers: dict[str, str] | None = None) -> Answer:
        connection = self._connect()
        try:
            connection.request(method, path, headers=headers or {})
            answer = connection.getresponse()
            return Answer(answer.status, dict(answer.headers), answer.read())
        finally:
            connection.close()

    def _connect(self) -> http.client.HTTPConnection:
        if self.context is None:
            return http.client.HTTPConnection("localhost", self.port, timeout=20)
        return http.client.HTTPSConnection("localhost", self.port, timeout=20, context=self.context)

    def raw(self, sent: bytes) -> bytes:
        """Everything the server says to these bytes on the bare connection."""
        with socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection:
            connection.sendall(sent)
            try:
                return b"".join(iter(lambda: connection.recv(65536), b""))
            except ConnectionError:
                return b""

    def certificate(self) -> bytes:
        """What the server shows."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        with (
            socket.create_connection(("127.0.0.1", self.port), timeout=20) as connection,
            context.wrap_socket(connection) as secured,
        ):
            return secured.getpeercert(binary_form=True) or b""


def basic(name: str, password: str) -> dict[str, str]:
    """The header that says who one is."""
    return {"Authorization": "Basic " + base64.b64encode(f"{name}:{password}".encode()).decode()}


def free_port() -> int:
    return urlsplit(free_url()).port or 0
