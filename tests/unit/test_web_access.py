# SPDX-License-Identifier: Apache-2.0
"""The server with a web configuration file: passwords, and files that change under it."""

from __future__ import annotations

import logging
import os
import ssl
import threading
import time
from pathlib import Path

import bcrypt
import pytest

from kubenpu.exporters.web_access_file import AccessFile
from kubenpu.model.errors import ConfigError
from tests.fakes.certificates import Authority, Certificate, tls_section
from tests.fakes.sim_tally import eventually
from tests.fakes.web_client import basic
from tests.unit.conftest import BODY, Serve

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(10)).decode()
USERS = f"basic_auth_users:\n  alice: {HASH}\n"
GOOD = basic("alice", "secret")
SCRAPE_TIMEOUT_S = 10  # of Prometheus, when nothing is configured


# ---- passwords ----


def test_without_password_nothing_is_told(serve: Serve) -> None:
    client = serve(USERS)
    for path in ("/", "/metrics", "/-/healthy", "/-/ready", "/nothing"):
        for method in ("GET", "HEAD", "POST"):
            answer = client.ask(path, method)
            assert answer.status == 401
            assert answer.headers["WWW-Authenticate"] == 'Basic realm="kubenpu", charset="UTF-8"'
            assert b"kubenpu_" not in answer.body
    assert client.ask(headers=GOOD).body == BODY
    assert client.ask("/nothing", headers=GOOD).status == 404
    assert client.ask(method="POST", headers=GOOD).status == 405


def test_old_protocol_needs_the_password_too(serve: Serve) -> None:
    assert b"kubenpu_" not in serve(USERS).raw(b"GET /metrics\r\n\r\n")


def test_passwords_in_parts_and_twice(serve: Serve) -> None:
    client = serve(USERS)
    good = GOOD["Authorization"].encode()
    wrong = basic("alice", "no")["Authorization"].encode()
    head = b"GET /metrics HTTP/1.1\r\nAuthorization: %b\r\nAuthorization: %b\r\nConnection: close\r\n\r\n"
    assert b" 401 " in client.raw(head % (wrong, good))
    assert b" 431 " in client.raw(b"GET /metrics HTTP/1.1\r\nAuthorization: Basic " + b"A" * 20000 + b"\r\n\r\n")


def test_security_headers_go_with_every_page(serve: Serve) -> None:
    headers = "http_server_config:\n  headers:\n    X-Content-Type-Options: nosniff\n    X-Frame-Options: deny\n"
    client = serve(USERS + headers)
    for given in ({}, GOOD):
        answer = client.ask(headers=given)
        assert (answer.headers["X-Content-Type-Options"], answer.headers["X-Frame-Options"]) == ("nosniff", "deny")


@pytest.mark.parametrize(("count", "distinct"), [(200, False), (60, True)])
def test_a_flood_of_wrong_passwords_starves_nobody(serve: Serve, count: int, distinct: bool) -> None:
    """R23: a good client, unknown until the flood is under way, is served before Prometheus gives up each time."""
    client = serve(USERS)
    numbers = iter(range(count))
    statuses: list[int] = []

    def guess() -> None:
        for number in numbers:
            answer = client.ask(headers=basic("alice", f"wrong{number if distinct else ''}"))
            statuses.append(answer.status)

    guessers = [threading.Thread(target=guess) for _ in range(4)]
    for guesser in guessers:
        guesser.start()
    eventually(lambda: len(statuses) >= 4)
    while any(guesser.is_alive() for guesser in guessers):
        asked = time.monotonic()
        assert client.ask(headers=GOOD).status == 200
        assert time.monotonic() - asked < SCRAPE_TIMEOUT_S
    for guesser in guessers:
        guesser.join(20)
    assert len(statuses) == count
    assert set(statuses) <= {401, 429}


# ---- files that change ----


def replace(made: Certificate, by: Certificate) -> None:
    """As certificate tools do: each file by a rename, one after the other."""
    for old, new in ((made.cert, by.cert), (made.key, by.key)):
        temporary = old.with_suffix(".new")
        temporary.write_bytes(new.read_bytes())
        temporary.rename(old)


def own_copy(tmp_path: Path, made: Certificate) -> Certificate:
    copy = Certificate(tmp_path / "own.pem", tmp_path / "own.key")
    copy.cert.touch()
    copy.key.touch()
    replace(copy, made)
    return copy


@pytest.mark.usefixtures("quick")
def test_a_replaced_certificate_is_used(
    serve: Serve, authority: Authority, issued: Certificate, tmp_path: Path
) -> None:
    mine = own_copy(tmp_path, issued)
    client = serve(tls_section(mine))
    first = client.certificate()
    replace(mine, authority.issue("renewed"))
    eventually(lambda: client.certificate() != first)
    assert client.ask().status == 200


@pytest.mark.usefixtures("quick")
def test_a_broken_certificate_changes_nothing_until_it_is_whole(
    serve: Serve, authority: Authority, issued: Certificate, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    mine = own_copy(tmp_path, issued)
    client = serve(tls_section(mine))
    first = client.certificate()
    renewed = authority.issue("renewed")
    mine.cert.write_bytes(renewed.cert.read_bytes())  # with the key of the old one
    eventually(lambda: "no certificate with its key" in caplog.text)
    assert client.certificate() == first
    mine.key.unlink()
    eventually(lambda: "No such file" in caplog.text)
    assert client.certificate() == first
    assert b"HTTP" not in client.raw(b"GET /metrics HTTP/1.1\r\n\r\n")
    mine.key.write_bytes(renewed.key.read_bytes())
    eventually(lambda: client.certificate() != first)
    errors = [record.getMessage() for record in caplog.records if record.levelno == logging.ERROR]
    assert len(errors) == 2
    assert not [error for error in errors if ".." in error]


@pytest.mark.usefixtures("quick")
def test_a_changed_file_is_in_force_and_a_broken_one_is_not(
    serve: Serve, web_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    client = serve(USERS)
    caplog.set_level(logging.INFO)
    assert client.ask(headers=GOOD).status == 200
    web_file.write_text(USERS + "unknown: 1\n")
    eventually(lambda: f"{web_file}:3: unknown key 'unknown'" in caplog.text)
    assert (client.ask().status, client.ask(headers=GOOD).status) == (401, 200)
    web_file.write_text(USERS.replace("alice", "bob"))
    eventually(lambda: client.ask(headers=GOOD).status == 401)
    bob = basic("bob", "secret")
    assert client.ask(headers=bob).status == 200


@pytest.mark.usefixtures("quick")
def test_tls_that_is_added_is_used(serve: Serve, web_file: Path, issued: Certificate, trusting: ssl.SSLContext) -> None:
    client = serve(USERS)
    web_file.write_text(tls_section(issued) + USERS)
    eventually(lambda: b"HTTP" not in client.raw(b"GET / HTTP/1.1\r\nConnection: close\r\n\r\n"))
    client.context = trusting
    assert client.ask(headers=GOOD).status == 200


def test_protection_is_never_dropped_while_running(web_file: Path, authority: Authority, issued: Certificate) -> None:
    """A file cut short in the middle of being written can be a valid one."""
    required = f"  client_auth_type: RequireAndVerifyClientCert\n  client_ca_file: {authority.cert}\n"
    optional = required.replace("RequireAndVerify", "Verify").replace("Cert\n", "CertIfGiven\n", 1)
    whole = tls_section(issued, required) + USERS
    web_file.write_text(whole)
    access = AccessFile(web_file)
    before = access.current
    for less, lost in (
        (tls_section(issued, required), "all passwords"),
        (tls_section(issued, optional) + USERS, "the check of client certificates"),
        (tls_section(issued) + USERS, "the check of client certificates"),
        (USERS, "TLS and the check of client certificates"),
        ("", "nothing is configured"),
        ("http_server_config: {}\n", "TLS and the check of client certificates and all passwords"),
    ):
        web_file.write_text(less)
        with pytest.raises(ConfigError, match=lost):
            access.reload()
        assert access.current is before
    web_file.write_text(whole)
    access.reload()
    assert access.current is not before


def test_a_file_is_read_only_when_it_has_been_still(web_file: Path) -> None:
    web_file.write_text(USERS)
    access = AccessFile(web_file)
    before = access.current
    for number in range(5):
        web_file.write_text(USERS + "#" * number)
        access.check()
    assert access.current is before
    access.check()
    assert access.current is not before
    latest = access.current
    access.check()
    assert access.current is latest


def test_the_start_needs_a_usable_file(web_file: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        AccessFile(web_file)
    web_file.write_text("basic_auth_users:\n  alice: secret\n")
    with pytest.raises(ConfigError, match=f"{web_file}:2: "):
        AccessFile(web_file)
    missing = Certificate(tmp_path / "missing.pem", tmp_path / "missing.key")
    web_file.write_text(tls_section(missing))
    with pytest.raises(ConfigError, match=f"{web_file}:2: cannot read"):
        AccessFile(web_file)


def test_a_pipe_is_an_error_at_once(web_file: Path, issued: Certificate, tmp_path: Path) -> None:
    """The thread that accepts connections looks at these files: it must not wait for a writer that never comes."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(ConfigError, match="not a regular file"):
        AccessFile(pipe)
    for number, text in enumerate(
        (
            tls_section(Certificate(pipe, issued.key)),
            tls_section(Certificate(issued.cert, pipe)),
            f"{tls_section(issued)}  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: {pipe}\n",
        )
    ):
        web_file.write_text(text)
        with pytest.raises(ConfigError, match=f":{(2, 3, 5)[number]}: cannot read {pipe}: not a regular file"):
            AccessFile(web_file)


def test_what_is_in_force_is_described(web_file: Path, authority: Authority, issued: Certificate) -> None:
    for text, expected in (
        (USERS, "plain HTTP, passwords of 1 users"),
        (tls_section(issued), "TLS, no passwords"),
        (
            tls_section(issued, f"  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: {authority.cert}\n"),
            "TLS with optional client certificates, no passwords",
        ),
    ):
        web_file.write_text(text)
        assert AccessFile(web_file).current.describe() == expected
