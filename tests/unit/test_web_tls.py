# SPDX-License-Identifier: Apache-2.0
"""The server over TLS: versions, client certificates, and clients that never finish or never read."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from collections.abc import Callable
from http import HTTPStatus
from pathlib import Path

import pytest

from kubenpu.exporters import web, web_request
from kubenpu.exporters.web import WebServer
from kubenpu.exporters.web_pages import Page
from tests.fakes.certificates import Authority, Certificate, tls_section
from tests.fakes.sim_tally import eventually
from tests.unit.conftest import BODY, Serve

# ---- TLS ----


def test_metrics_over_tls(serve: Serve, issued: Certificate) -> None:
    client = serve(tls_section(issued))
    answer = client.ask(headers={"Accept-Encoding": "identity"})
    assert (answer.status, answer.body) == (200, BODY)
    assert client.ask(method="HEAD").body == b""


def test_never_plain_http_on_a_tls_port(serve: Serve, issued: Certificate, monkeypatch: pytest.MonkeyPatch) -> None:
    client = serve(tls_section(issued))
    for sent in (b"GET /metrics HTTP/1.1\r\n\r\n", b"\0" * 100, b"\x16\x03\x01\x40\x00" + b"\xff" * 20000, b"GET /\n"):
        assert b"HTTP" not in client.raw(sent)
    monkeypatch.setattr(web, "MAX_CONNECTIONS", 0)
    assert client.raw(b"GET /metrics HTTP/1.1\r\n\r\n") == b""


def test_old_tls_is_refused(serve: Serve, issued: Certificate, trusting: ssl.SSLContext) -> None:
    client = serve(tls_section(issued, "  min_version: TLS13\n"))
    assert client.ask().status == 200
    trusting.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        client.ask()


@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
def test_both_versions_work_with_a_chosen_suite(
    serve: Serve, issued: Certificate, trusting: ssl.SSLContext, version: ssl.TLSVersion
) -> None:
    more = "  cipher_suites: [TLS_ECDHE_ECDSA_WITH_AES_256_GCM_SHA384]\n  curve_preferences: [CurveP384]\n"
    trusting.minimum_version = trusting.maximum_version = version
    assert serve(tls_section(issued, more)).ask().status == 200


def test_client_certificates(
    serve: Serve, authority: Authority, issued: Certificate, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    required = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.cert}\n"
    client = serve(tls_section(issued, required))
    with pytest.raises(OSError, match=r"(?i)certificate|reset|pipe|closed|eof"):
        client.ask()
    trusting.load_cert_chain(stranger.cert, stranger.key)
    with pytest.raises(OSError, match=r"(?i)unknown|reset|pipe|closed|eof"):
        client.ask()
    known = authority.issue("prometheus")
    trusting.load_cert_chain(known.cert, known.key)
    assert client.ask().status == 200


def test_client_certificates_if_given(
    serve: Serve, authority: Authority, issued: Certificate, trusting: ssl.SSLContext, tmp_path: Path
) -> None:
    client = serve(
        tls_section(issued, f"  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: {authority.cert}\n")
    )
    assert client.ask().status == 200
    stranger = Authority(tmp_path, "stranger").issue("mallory")
    trusting.load_cert_chain(stranger.cert, stranger.key)
    with pytest.raises(OSError, match=r"(?i)unknown|reset|pipe|closed|eof"):
        client.ask()


def test_unfinished_handshakes_hold_nobody_up(
    serve: Serve, issued: Certificate, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = serve(tls_section(issued))
    before = threading.active_count()
    silent = [socket.create_connection(("127.0.0.1", client.port), timeout=20) for _ in range(10)]
    silent[0].sendall(b"\x16\x03\x01\x02\x00\x01")
    eventually(lambda: threading.active_count() >= before + 10)
    begin = time.monotonic()
    assert client.ask().status == 200
    assert time.monotonic() - begin < web_request.TIMEOUT_S
    for connection in silent:
        connection.close()
    eventually(lambda: threading.active_count() == before)
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.1)
    assert client.raw(b"\x16\x03\x01\x02\x00\x01") == b""


def test_unfinished_handshakes_cannot_take_all_places(serve: Serve, issued: Certificate) -> None:
    client = serve(tls_section(issued))
    silent = [socket.create_connection(("127.0.0.1", client.port), timeout=20) for _ in range(web.MAX_CONNECTIONS + 5)]
    for _ in range(5):
        assert client.ask().status == 200
    assert silent[0].recv(100) == b""
    for connection in silent:
        connection.close()


def test_a_slow_reader_over_tls_is_cut(
    server_of: Callable[[str], WebServer],
    issued: Certificate,
    trusting: ssl.SSLContext,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Each record that gets through must not renew the time there is for the whole answer."""
    monkeypatch.setattr(web_request, "TIMEOUT_S", 0.3)
    server = server_of(tls_section(issued))
    monkeypatch.setitem(server._site.routes, "/big", lambda _accept: Page(HTTPStatus.OK, "x", b"x" * (32 << 20)))
    port = int(server.describe().rpartition(":")[2])
    before = threading.active_count()
    with socket.create_connection(("127.0.0.1", port), timeout=20) as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        with trusting.wrap_socket(connection, server_hostname="localhost") as secured:
            secured.sendall(b"GET /big HTTP/1.1\r\n\r\n")
            begin, got = time.monotonic(), 0
            try:
                while chunk := secured.recv(4096):
                    got += len(chunk)
                    threading.Event().wait(0.001)
            except OSError:
                pass  # it was cut in the middle of a record
            assert time.monotonic() - begin < 10
            assert 0 < got < 32 << 20
    eventually(lambda: threading.active_count() < before + 1)


def test_stop_cuts_tls_connections_and_handshakes(
    server_of: Callable[[str], WebServer], issued: Certificate, trusting: ssl.SSLContext
) -> None:
    server = server_of(tls_section(issued))
    port = int(server.describe().rpartition(":")[2])
    before = threading.active_count()
    with (
        socket.create_connection(("127.0.0.1", port), timeout=20) as silent,
        socket.create_connection(("127.0.0.1", port), timeout=20) as connection,
        trusting.wrap_socket(connection, server_hostname="localhost") as secured,
    ):
        eventually(lambda: threading.active_count() == before + 2)
        begin = time.monotonic()
        server.stop()
        assert time.monotonic() - begin < 5
        assert silent.recv(10) == b""
        assert secured.recv(10) == b""
