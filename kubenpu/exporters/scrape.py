# SPDX-License-Identifier: Apache-2.0
"""The client of kubenpud's metrics: fetches one scrape and gives rows back. Keeps no connection, changes nothing."""

from __future__ import annotations

import contextlib
import http.client
import socket
import ssl
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from kubenpu.model.errors import SourceError, UnreachableError

DEFAULT_URL = "http://127.0.0.1:10074/metrics"
_TIMEOUT_S = 10.0
_MAX_BYTES = 64 << 20
_OTHER_ADDRESS = "Give --url an address that this user may read without password and certificate"


@dataclass(frozen=True, slots=True)
class Row:
    """One sample: metric name with its suffix, labels, value."""

    name: str
    labels: Mapping[str, str]
    value: float


class RefusedError(SourceError):
    """Somebody answers, and lets us read nothing."""


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str) -> None:
        super().__init__("localhost", timeout=_TIMEOUT_S)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


def fetch(url: str = DEFAULT_URL) -> list[Row]:
    """All samples of one scrape, of an http URL or of `unix:/path/of/socket:/metrics`.

    Raises UnreachableError when nobody answers, RefusedError, and SourceError when it is something else that answers.
    Certificates are not verified: nothing secret is sent, and an answer is an answer.
    """
    try:
        with contextlib.closing(_open(url)) as answer:
            body: bytes = answer.read(_MAX_BYTES)
            if answer.length:  # read() with a limit does not mind an answer that breaks off
                raise http.client.IncompleteRead(body, answer.length)
        return list(_rows(body.decode()))
    except urllib.error.HTTPError as e:
        e.close()
        raise _wrong_status(url, e.code, e.reason) from e
    except (http.client.HTTPException, OSError) as e:
        raise _unread(url, e.reason if isinstance(e, urllib.error.URLError) else e) from e
    except (ValueError, IndexError) as e:
        raise SourceError(
            f"what answers at {url} is not kubenpud ({str(e) or 'no metrics'})", "Name the address of kubenpud"
        ) from e


def _open(url: str) -> Any:
    headers = {"Accept": "text/plain;version=0.0.4"}
    path, colon, page = url.removeprefix("unix:").rpartition(":")
    if url.startswith("unix:/") and colon and page.startswith("/"):
        with contextlib.closing(_UnixConnection(path)) as connection:  # the answer outlives it
            connection.request("GET", page, headers={**headers, "Connection": "close"})
            answer = connection.getresponse()
        if answer.status != HTTPStatus.OK:
            raise urllib.error.HTTPError(url, answer.status, answer.reason, answer.headers, answer)
        return answer
    if not url.startswith(("http://", "https://")):
        raise SourceError(f"{url} is not an http URL", f"Give one like {DEFAULT_URL}")
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - checked above
    except ValueError as e:
        raise SourceError(f"{url} is not an http URL ({e})", f"Give one like {DEFAULT_URL}") from e
    trusting = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    trusting.check_hostname, trusting.verify_mode = False, ssl.CERT_NONE
    return urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=trusting)  # noqa: S310 - checked above


def _wrong_status(url: str, status: int, reason: str) -> SourceError:
    found = f"{url} answers {status} {reason}"
    if status in {HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN}:
        return RefusedError(found, _OTHER_ADDRESS)
    return SourceError(found, "Name the address of kubenpud, or see what it logs: journalctl -u kubenpud")


def _unread(url: str, reason: object) -> SourceError:
    if isinstance(reason, ssl.SSLError) and "ALERT" not in (reason.reason or ""):
        return SourceError(f"what answers at {url} does not speak TLS ({reason})", "Name it with http://")
    if isinstance(reason, ssl.SSLError):
        return RefusedError(f"{url} answers, but not without a certificate ({reason})", _OTHER_ADDRESS)
    if isinstance(reason, ConnectionResetError | BrokenPipeError | http.client.BadStatusLine):
        return RefusedError(f"{url} answers, but hangs up, as who wants TLS does ({reason})", _OTHER_ADDRESS)
    if isinstance(reason, PermissionError):
        return RefusedError(f"{url} is not open to this user", "Run as root to see it")
    return UnreachableError(f"kubenpud does not answer at {url} ({reason})", "Start it: systemctl start kubenpud")


def _rows(text: str) -> Iterator[Row]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Row(sample.name, sample.labels, float(sample.value))  # the library gives int for a whole number
