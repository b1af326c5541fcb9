# SPDX-License-Identifier: Apache-2.0
"""The web server over real sockets: what is served, to whom, and what a stranger cannot do to it."""

from __future__ import annotations

import contextlib
import gzip
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.exporters import web, web_request
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_listen import parse_address
from kubenpu.exporters.web_pages import accepts_gzip, node_routes
from kubenpu.model.errors import ConfigError, SourceError
from tests.fakes.sim_tally import eventually

BODY = b"kubenpu_simulated 0\n" * 200


class World:
    """What the server is asked to show."""

    def __init__(self) -> None:
        self.reason = ""
        self.accepts: list[str] = []
        self.hold: threading.Event | None = None

    def render(self, accept: str) -> tuple[str, bytes]:
        self.accepts.append(accept)
        if self.hold is not None:
            assert self.hold.wait(20)
        if accept == "broken":
            raise SourceError("no counters", "Start kubenpu-probe")
        return "text/plain; version=0.0.4; charset=utf-8", BODY

    def not_ready(self) -> str:
        return self.reason


def open_fds() -> set[str]:
    return {entry.name for entry in Path("/proc/self/fd").iterdir()}


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def port(world: World) -> Iterator[int]:
    """A running server; afterwards no thread and no file descriptor of it is left."""
    fds, threads = open_fds(), set(threading.enumerate())
    server = WebServer(["127.0.0.1:0"], node_routes("/metrics", world.render, world.not_ready, "a <test> node"))
    server.start()
    yield int(server.describe().rpartition(":")[2])
    server.stop()
    assert set(threading.enumerate()) <= threads
    assert open_fds() <= fds


def ask(
    port: int, path: str, method: str = "GET", headers: dict[str, str] | None = None, body: bytes | None = None
) -> tuple[http.client.HTTPResponse, bytes]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    try:
        connection.request(method, path, body, headers or {})
        answer = connection.getresponse()
        return answer, answer.read()
    finally:
        connection.close()


def raw(port: int, sent: bytes) -> bytes:
    """Everything the server says to these bytes until it closes."""
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(sent)
        return b"".join(iter(lambda: connection.recv(65536), b""))


def test_metrics(port: int, world: World) -> None:
    answer, body = ask(port, "/metrics?x=y", headers={"Accept": "text/plain;q=0.5"})
    assert (answer.status, body) == (200, BODY)
    assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert answer.headers["Content-Encoding"] is None
    assert answer.headers["Vary"] == "Accept, Accept-Encoding"
    assert world.accepts == ["text/plain;q=0.5"]


def test_metrics_compressed(port: int) -> None:
    answer, body = ask(port, "/metrics", headers={"Accept-Encoding": "gzip"})
    assert answer.headers["Content-Encoding"] == "gzip"
    assert gzip.decompress(body) == BODY


def test_head_has_the_headers_and_no_body(port: int) -> None:
    answer, body = ask(port, "/metrics", "HEAD")
    assert (answer.status, answer.headers["Content-Length"], body) == (200, str(len(BODY)), b"")


def test_health_and_readiness(port: int, world: World) -> None:
    assert ask(port, "/-/healthy")[0].status == ask(port, "/-/ready")[0].status == 200
    world.reason = "counters: not open\udcff"
    answer, body = ask(port, "/-/ready")
    assert (answer.status, body) == (503, b"not ready: counters: not open\\udcff\n")
    assert ask(port, "/-/healthy")[0].status == 200


def test_landing_page_escapes(port: int) -> None:
    answer, body = ask(port, "/")
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert b'<a href="/metrics">' in body
    assert b"a &lt;test&gt; node" in body


def test_what_is_not_there(port: int) -> None:
    for path in ("/metric", "/metrics/", "/[::bad", "/%00"):
        answer, body = ask(port, path)
        assert (answer.status, answer.headers["Content-Type"]) == (404, "text/plain; charset=utf-8")
        assert b"<" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE"])
def test_other_methods(port: int, world: World, method: str) -> None:
    answer, _ = ask(port, "/metrics", method, body=b"x" * 10000)
    assert (answer.status, answer.headers["Allow"]) == (405, "GET, HEAD")
    assert world.accepts == []


def test_an_error_of_ours_is_an_answer(port: int) -> None:
    answer, body = ask(port, "/metrics", headers={"Accept": "broken"})
    assert (answer.status, body) == (503, b"no counters. Start kubenpu-probe.\n")


def test_connections_are_kept(port: int) -> None:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    for _ in range(3):
        connection.request("GET", "/metrics")
        answer = connection.getresponse()
        assert len(answer.read()) == len(BODY)
        assert not answer.will_close
    connection.close()


def test_a_body_cannot_smuggle_a_second_request(port: int) -> None:
    inner = b"GET /-/healthy HTTP/1.1\r\n\r\n"
    head = b"GET /-/ready HTTP/1.1\r\nContent-Length: %d\r\n\r\n" % len(inner)
    assert raw(port, head + inner).count(b"HTTP/1.1 ") == 1


@pytest.mark.parametrize(
    ("sent", "expected"),
    [
        (b"GET / HTTP/1.1\r\nX: " + b"x" * 20000, b" 431 "),
        (b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 4000, b" 431 "),
        (b"GET /" + b"x" * 20000, b" 431 "),
        (b"BREW / HTTP/1.1\r\n\r\n", b" 501 "),
        (b"GET / HTTP/9.9\r\n\r\n", b"505 "),
        (b"\x16\x03\x01\x02\x00\x01\xff\xfe\r\n", b"400 "),
        (b"GET http://[bad/x HTTP/1.1\r\n\r\n", b" 404 "),
        (b"GET / HTTP/1.1\r\nContent-Length: -1\r\n\r\n", b" 400 "),
        (b"GET / HTTP/1.1\r\nBad header\r\n\r\n", b"HTTP/1.1 "),
    ],
)
def test_broken_requests_get_a_text_answer(port: int, sent: bytes, expected: bytes) -> None:
    said = raw(port, sent + b"\r\n\r\n")
    assert expected in said
    assert b"Traceback" not in said
    assert ask(port, "/-/healthy")[0].status == 200


def test_a_client_that_leaves_is_nobodys_error(port: int, world: World, caplog: pytest.LogCaptureFixture) -> None:
    world.hold = threading.Event()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: bool(world.accepts))
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\0\0\0\0\0\0\0")
    world.hold.set()
    assert ask(port, "/metrics")[0].status == 200
    assert caplog.records == []


def test_a_slow_client_is_cut(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.2)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        begin = time.monotonic()
        while time.monotonic() - begin < 20:
            try:
                connection.sendall(b"G")
                connection.settimeout(0.05)
                if not connection.recv(1):
                    break
            except TimeoutError:
                continue
            except ConnectionError:
                break
        assert time.monotonic() - begin < 10


def test_a_client_that_does_not_read_is_cut(monkeypatch: pytest.MonkeyPatch, port: int, world: World) -> None:
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.2)
    monkeypatch.setattr(world, "render", lambda _accept: ("text/plain", b"x" * (64 << 20)))
    before = threading.active_count()
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: threading.active_count() > before)
        eventually(lambda: threading.active_count() == before)


def test_too_many_connections_are_refused(monkeypatch: pytest.MonkeyPatch, port: int, world: World) -> None:
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 3)
    world.hold = threading.Event()
    busy = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
    for connection in busy:
        connection.sendall(b"GET /metrics HTTP/1.1\r\nConnection: close\r\n\r\n")
    eventually(lambda: len(world.accepts) == 3)
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        assert connection.recv(100).startswith(b"HTTP/1.1 503 ")
    world.hold.set()
    for connection in busy:
        assert b"200 OK" in connection.recv(100)
        connection.close()


def test_whoever_keeps_us_waiting_gives_way(monkeypatch: pytest.MonkeyPatch, port: int) -> None:
    """Half-open connections and unfinished heads cannot hold all places: the one that waits longest loses its own."""
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 3)
    idle = [socket.create_connection(("127.0.0.1", port), timeout=20) for _ in range(3)]
    idle[1].sendall(b"GET /metrics HTT")
    for _ in range(20):
        assert ask(port, "/metrics")[0].status == 200
    assert idle[0].recv(100) == b""
    for connection in idle:
        connection.close()


def test_a_flood_from_one_address_starves_no_other(port: int) -> None:
    """40 half-open connections, then as many new ones as scrapes: who comes from elsewhere is answered each time."""

    def scrape(client: http.client.HTTPConnection) -> int:
        client.request("GET", "/metrics")
        answer = client.getresponse()
        answer.read()
        return answer.status

    def elsewhere() -> http.client.HTTPConnection:
        return http.client.HTTPConnection("127.0.0.1", port, timeout=20, source_address=("127.0.0.2", 0))

    with contextlib.ExitStack() as stack:
        for _ in range(40):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
        kept = stack.enter_context(contextlib.closing(elsewhere()))
        assert scrape(kept) == 200
        first = kept.sock
        for _ in range(20):
            stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            with contextlib.closing(elsewhere()) as client:
                assert scrape(client) == 200
        assert scrape(kept) == 200
        assert kept.sock is first


def test_who_has_most_places_gets_none_of_others(monkeypatch: pytest.MonkeyPatch, port: int, world: World) -> None:
    """Who is waited for but has fewer connections keeps them while somebody with many wants more."""
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 3)
    world.hold = threading.Event()
    with contextlib.ExitStack() as stack:
        for _ in range(2):
            busy = stack.enter_context(socket.create_connection(("127.0.0.1", port), timeout=20))
            busy.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        eventually(lambda: len(world.accepts) == 2)
        idle = stack.enter_context(
            socket.create_connection(("127.0.0.1", port), timeout=20, source_address=("127.0.0.2", 0))
        )
        with socket.create_connection(("127.0.0.1", port), timeout=20) as refused:
            assert refused.recv(100).startswith(b"HTTP/1.1 503 ")
        idle.sendall(b"GET /-/healthy HTTP/1.1\r\n\r\n")
        assert idle.recv(1000).startswith(b"HTTP/1.1 200 ")
        world.hold.set()


def test_users_of_a_unix_socket_are_told_apart(tmp_path: Path, world: World) -> None:
    server = WebServer([f"unix:{tmp_path}/s"], node_routes("/metrics", world.render, world.not_ready))
    server.start()
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.connect(f"{tmp_path}/s")
            eventually(lambda: [c.client for c in list(server._connections)] == [f"user {os.getuid()}"])
    finally:
        server.stop()


def test_a_steady_trickle_is_cut_too(monkeypatch: pytest.MonkeyPatch, port: int, world: World) -> None:
    """Reading a little now and then does not renew the time there is for the whole answer."""
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.3)
    monkeypatch.setattr(world, "render", lambda _accept: ("text/plain", b"x" * (64 << 20)))
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.settimeout(20)
        connection.connect(("127.0.0.1", port))
        connection.sendall(b"GET /metrics HTTP/1.1\r\n\r\n")
        begin, got = time.monotonic(), 0
        with contextlib.suppress(ConnectionError):
            while chunk := connection.recv(4096):
                got += len(chunk)
                threading.Event().wait(0.001)
        assert time.monotonic() - begin < 10
        assert got < 64 << 20


def test_stop_cuts_open_connections(world: World) -> None:
    server = WebServer(["127.0.0.1:0"], node_routes("/metrics", world.render, world.not_ready))
    server.start()
    connection = http.client.HTTPConnection("127.0.0.1", int(server.describe().rpartition(":")[2]), timeout=20)
    connection.request("GET", "/metrics")
    connection.getresponse().read()
    begin = time.monotonic()
    server.stop()
    assert time.monotonic() - begin < 5
    assert connection.sock.recv(1) == b""
    connection.close()
    server.stop()


def test_every_spelling_of_an_address_is_served(world: World) -> None:
    server = WebServer(
        [":0", "127.0.0.1:0", "[::1]:0", "localhost:0"], {"/": node_routes("/m", world.render, str)["/"]}
    )
    server.start()
    try:
        ports = [int(address.rpartition(":")[2]) for address in server.describe().split(", ")]
        hosts = [("127.0.0.1", "::1"), ("127.0.0.1",), ("::1",), ("localhost",)]
        for port, names in zip(ports, hosts, strict=True):
            for host in names:
                connection = http.client.HTTPConnection(host, port, timeout=20)
                connection.request("GET", "/")
                assert connection.getresponse().status == 200
                connection.close()
    finally:
        server.stop()


def test_an_address_in_use_is_named_and_nothing_stays_open(port: int, world: World) -> None:
    server = WebServer(["127.0.0.1:0", f"127.0.0.1:{port}"], {})
    before = open_fds()
    with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{port}: Address already in use"):
        server.start()
    assert open_fds() == before
    server.stop()


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (":10074", ("", 10074)),
        ("127.0.0.1:0", ("127.0.0.1", 0)),
        ("[::1]:65535", ("::1", 65535)),
        ("node.example:80", ("node.example", 80)),
    ],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert parse_address(text) == expected


@pytest.mark.parametrize(
    "text", ["", "10074", ":", ":x", "::1:80", ":65536", ":-1", ":1e3", "a b:80", "\n:80", ":" + "0" * 5000, ":٣"]
)
def test_what_is_no_address(text: str) -> None:
    with pytest.raises(ConfigError):
        parse_address(text)


@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("gzip", True),
        ("br, GZIP;q=0.5", True),
        ("gzip;q=0", False),
        ("gzip; q=0.000", False),
        ("", False),
        ("x", False),
    ],
)
def test_gzip_negotiation(header: str, expected: bool) -> None:
    assert accepts_gzip(header) is expected
