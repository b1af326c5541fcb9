# SPDX-License-Identifier: Apache-2.0
"""Heads of HTTP requests, as strangers send them."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.exporters.web_head import HeadError, parse_head


def head(*fields: bytes, request: bytes = b"GET / HTTP/1.1") -> tuple[bytes, ...]:
    return (request, *fields)


def test_a_head() -> None:
    found = parse_head(head(b"Host: x:1", b"ACCEPT:\t text/plain \t", b"Empty:", b"Accept: */*", b"X: \xe4:b"))
    assert (found.method, found.path, found.version) == ("GET", "/", "HTTP/1.1")
    assert found.headers == {"host": "x:1", "accept": "text/plain, */*", "empty": "", "x": "\xe4:b"}
    assert not found.has_body
    assert not found.is_last


@pytest.mark.parametrize(
    ("request_line", "status"),
    [
        (b"GET /", 400),
        (b"/ HTTP/1.1", 400),
        (b"GET / x HTTP/1.1", 400),
        (b"GET / HTTP/1.1x", 400),
        (b"GET / HTTP/1", 400),
        (b"GET / http/1.1", 400),
        (b"GET / HTTP/1.\xb2", 400),
        (b"GET / HTTP/2.0", 505),
        (b"GET / HTTP/0.9", 505),
        (b"PRI * HTTP/2.0", 505),
        (b"get / HTTP/1.1", 501),
        (b"BREW / HTTP/1.1", 501),
    ],
)
def test_what_is_no_request(request_line: bytes, status: int) -> None:
    with pytest.raises(HeadError) as caught:
        parse_head(head(request=request_line))
    assert caught.value.status == status


@pytest.mark.parametrize("field", [b"nonsense", b": x", b"Host : x", b" folded: x", b"\tfolded", b"a b: c", b"a\0: b"])
def test_what_is_no_header(field: bytes) -> None:
    with pytest.raises(HeadError) as caught:
        parse_head(head(b"Host: x", field))
    assert caught.value.status == 400


@pytest.mark.parametrize("lengths", [(b"-1",), (b"+0",), (b"",), (b"1e3",), (b"\xb2",), (b"0", b"5"), (b"5", b"0")])
def test_what_is_no_length(lengths: tuple[bytes, ...]) -> None:
    with pytest.raises(HeadError) as caught:
        parse_head(head(*(b"Content-Length: " + length for length in lengths)))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("target", "path"),
    [
        (b"http://x/metrics", "/metrics"),
        (b"HTTPS://[::1]:1/a?b", "/a?b"),
        (b"http://x", "/"),
        (b"http://x?y", "/?y"),
        (b"/http://x/y", "/http://x/y"),
        (b"ftp://x/y", "ftp://x/y"),
    ],
)
def test_a_target_may_have_a_host(target: bytes, path: str) -> None:
    assert parse_head(head(request=b"GET " + target + b" HTTP/1.1")).path == path


@pytest.mark.parametrize(
    ("fields", "expected"),
    [
        ((b"Content-Length: 0",), False),
        ((b"content-length: 5",), True),
        ((b"Content-Length: 00",), False),
        ((b"Transfer-Encoding: chunked",), True),
        ((b"Transfer-Encoding:", b"Content-Length: 0"), True),
    ],
)
def test_bodies(fields: tuple[bytes, ...], expected: bool) -> None:
    assert parse_head(head(*fields)).has_body is expected


@pytest.mark.parametrize(
    ("version", "fields", "expected"),
    [
        (b"1.1", (), False),
        (b"1.1", (b"Connection: keep-alive",), False),
        (b"1.1", (b"Connection: Close",), True),
        (b"1.1", (b"Connection: x, close",), True),
        (b"1.1", (b"Connection: x", b"Connection: close"), True),
        (b"1.0", (), True),
        (b"1.0", (b"Connection: keep-alive",), True),
    ],
)
def test_whether_it_is_the_last(version: bytes, fields: tuple[bytes, ...], expected: bool) -> None:
    assert parse_head(head(*fields, request=b"GET / HTTP/" + version)).is_last is expected


@given(st.lists(st.binary(max_size=40), min_size=1, max_size=5))
def test_anything_is_a_head_or_a_bad_one(lines: list[bytes]) -> None:
    with contextlib.suppress(HeadError):
        parse_head(lines)


@given(st.lists(st.tuples(st.binary(max_size=8), st.binary(max_size=8)), max_size=5))
def test_any_header_is_one_or_bad(fields: list[tuple[bytes, bytes]]) -> None:
    with contextlib.suppress(HeadError):
        found = parse_head(head(*(name + b":" + value for name, value in fields)))
        assert found.headers.keys() == {name.partition(b":")[0].decode().lower() for name, _ in fields}
