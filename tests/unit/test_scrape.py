# SPDX-License-Identifier: Apache-2.0
"""The client of the metrics: what it makes of kubenpud, of something else, and of nothing at all."""

from __future__ import annotations

import io
import math
import socket
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.exporters.scrape import RefusedError, Row, fetch
from kubenpu.model.errors import SourceError
from tests.fakes.sim_metrics import free_url, serve_text

GOLDEN = Path(__file__).parents[1] / "golden" / "scrape.txt"
WELL = """\
# HELP kubenpu_ioctl_total Calls of a driver.
# TYPE kubenpu_ioctl_total counter
kubenpu_ioctl_total{pod="a\\\\b\\"c\\nd",namespace="",kind="submit"} 3
kubenpu_ioctl_total{pod="\u6a21\u578b \U0001f680",kind="wait"} 4.0 1700000000000
# TYPE kubenpu_hook_up gauge
kubenpu_hook_up NaN
"""
PIECES = st.sampled_from(
    (
        *("# TYPE ", "# HELP ", "# EOF", " counter", " gauge", " histogram", " summary", "a", "a_total", "_", "<html>"),
        *("{", "}", '"', "\\", "=", ",", " ", "\n", "\r", "\t", "#", " # ", '{"a"}', 'x="y"', 'le="0.1"'),
        *("1", "1 2", "-1e999", "NaN", "+Inf", "9" * 5000, "\x00", "\x1b[31m", "\u2028", "\ufeff"),
    )
)
TEXTS = st.one_of(st.lists(PIECES, max_size=30).map("".join), st.text(max_size=60))


class Answer(io.BytesIO):
    """A whole HTTP answer: nothing is left to come."""

    length = 0


def test_rows_of_a_scrape() -> None:
    with serve_text(WELL) as url:
        first, second, third = fetch(url)
    assert first == Row("kubenpu_ioctl_total", {"pod": 'a\\b"c\nd', "namespace": "", "kind": "submit"}, 3.0)
    assert second == Row("kubenpu_ioctl_total", {"pod": "\u6a21\u578b \U0001f680", "kind": "wait"}, 4.0)
    assert (third.name, third.labels, math.isnan(third.value)) == ("kubenpu_hook_up", {}, True)


def test_what_kubenpud_writes_is_read_back_whole() -> None:
    text = GOLDEN.read_text()
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    with serve_text(text) as url:
        rows = fetch(url)
    assert [row.name for row in rows] == [line.partition("{")[0].partition(" ")[0] for line in lines]
    assert len(rows) > 20


def test_an_empty_scrape_has_no_rows() -> None:
    with serve_text("") as url:
        assert fetch(url) == []


# ---- something else answers ----


@pytest.mark.parametrize(
    "body",
    [
        b"<!DOCTYPE html><html><body>Welcome to nginx!</body></html>",
        b'{"status": "ok"}',
        b"# TYPE ",
        b"{\\=, = histogram",
        b"kubenpu_ioctl_total{pod=",
        b'kubenpu_ioctl_total{pod="a"} many',
        b"kubenpu_ioctl_total",
        b"\x1f\x8b\x08\x00\x00",
        b"\xff\xfe\x00",
        b"a 1\n\xc3(",
        bytes(range(256)),
    ],
)
def test_garbage(body: bytes) -> None:
    with serve_text(body) as url, pytest.raises(SourceError, match="is not kubenpud") as caught:
        fetch(url)
    assert url in caught.value.cause
    assert caught.value.remedy == "Name the address of kubenpud"
    assert "()" not in caught.value.cause


@given(TEXTS)
def test_any_text_is_rows_or_an_error(text: str) -> None:
    answer = Answer(text.encode(errors="surrogatepass"))
    with mock.patch.object(urllib.request, "urlopen", return_value=answer):
        try:
            rows = fetch()
        except SourceError as error:
            assert error.remedy
        else:
            assert all(isinstance(row.value, float) for row in rows)


@given(st.binary(max_size=60))
def test_any_bytes_are_rows_or_an_error(data: bytes) -> None:
    with mock.patch.object(urllib.request, "urlopen", return_value=Answer(data)):
        try:
            fetch()
        except SourceError as error:
            assert "is not kubenpud" in error.cause


@pytest.mark.parametrize(
    ("status", "phrase"), [(404, "Not Found"), (500, "Internal Server Error"), (401, "Unauthorized")]
)
def test_http_errors(status: int, phrase: str) -> None:
    with serve_text("# nothing here", status) as url, pytest.raises(SourceError, match=phrase) as caught:
        fetch(url)
    assert url in caught.value.cause
    assert "systemctl start" not in caught.value.remedy
    assert isinstance(caught.value, RefusedError) is (status == 401)


# ---- nothing answers ----


def test_nobody_listens() -> None:
    url = free_url()
    with pytest.raises(SourceError, match="does not answer") as caught:
        fetch(url)
    assert "refused" in caught.value.cause
    assert "systemctl start kubenpud" in caught.value.remedy


@contextmanager
def raw_server(said: bytes) -> Iterator[str]:
    """A server that says these bytes to its first client, whatever it asks, and hangs up."""

    def serve() -> None:
        connection, _ = listener.accept()
        with connection:
            connection.recv(65536)
            connection.sendall(said)

    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}/metrics"
        finally:
            thread.join()


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"SSH-2.0-OpenSSH_9.2p1 Debian-2\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\na 1\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\na 1\n",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\n" + b"X: y\r\n" * 200 + b"\r\n",
        b"HTTP/1.1 999 " + b"x" * 70000 + b"\r\n\r\n",
        b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\nContent-Length: 0\r\n\r\n",
    ],
    ids=lambda said: repr(said[:40]),
)
def test_an_answer_that_breaks_off_or_is_no_http(said: bytes) -> None:
    with raw_server(said) as url, pytest.raises(SourceError) as caught:
        fetch(url)
    assert url in caught.value.cause
    assert caught.value.remedy


def test_a_server_that_never_answers_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kubenpu.exporters.scrape._TIMEOUT_S", 0.05)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/metrics"
        with pytest.raises(SourceError, match="timed out"):
            fetch(url)


@pytest.mark.parametrize(
    "url",
    [
        "",
        "metrics",
        "127.0.0.1:10074/metrics",
        "file:///etc/passwd",
        "FILE:///etc/passwd",
        "ftp://127.0.0.1/",
        "unix:/run/x",
    ],
)
def test_only_http_is_fetched(url: str) -> None:
    with (
        mock.patch.object(urllib.request, "urlopen") as urlopen,
        pytest.raises(SourceError, match="is not an http URL"),
    ):
        fetch(url)
    urlopen.assert_not_called()


@pytest.mark.parametrize(
    "url", ["http://", "http://[", "http://127.0.0.1:port/", "http://127.0.0.1:1/a b", "http://\u00e4\u2028/"]
)
def test_an_address_that_is_none(url: str) -> None:
    with pytest.raises(SourceError) as caught:
        fetch(url)
    assert caught.value.remedy
