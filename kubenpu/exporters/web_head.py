# SPDX-License-Identifier: Apache-2.0
"""The head of an HTTP/1 request: from lines to method, path and headers. Pure.

What comes in is whatever a stranger sends. Refused is what two readers could understand differently: folded lines,
blanks before a colon, a length that is no number, a version that is not HTTP/1. Python's http.server is not used: it
brings the parsers for mail, 1.2 MiB, and OpenSSL.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from http import HTTPStatus

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT"))
_VERSION = re.compile(r"HTTP/[0-9]\.[0-9]")
_ABSOLUTE = re.compile(
    r"(?i:https?)://[^/?#]*"
)  # as a client writes that takes us for a proxy; the host is its own affair
_LENGTH = re.compile(r"[0-9]+")
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+")


class HeadError(Exception):
    """Why a request gets this status and no other answer."""

    def __init__(self, status: HTTPStatus, text: str) -> None:
        super().__init__(text)
        self.status = status


@dataclass(frozen=True, slots=True)
class Head:
    """`headers`: names in lower case; what was sent several times is one value, with commas."""

    method: str
    path: str
    version: str
    headers: Mapping[str, str]

    @property
    def has_body(self) -> bool:
        return bool(self.headers.get("content-length", "").strip("0")) or "transfer-encoding" in self.headers

    @property
    def is_last(self) -> bool:
        """Whether the client wants nothing else on this connection."""
        wishes = (wish.strip().lower() for wish in self.headers.get("connection", "").split(","))
        return self.version == "HTTP/1.0" or "close" in wishes


def parse_head(lines: Sequence[bytes]) -> Head:
    """`lines` are those before the empty one, at least one, without their ends. Raises HeadError."""
    request, *fields = (line.decode("latin-1") for line in lines)
    words = request.split()
    if len(words) != 3 or not _VERSION.fullmatch(words[2]):
        raise HeadError(HTTPStatus.BAD_REQUEST, "this is no HTTP request")
    method, path, version = words
    if not version.startswith("HTTP/1."):
        raise HeadError(HTTPStatus.HTTP_VERSION_NOT_SUPPORTED, "only HTTP/1 is spoken here")
    if method not in METHODS:
        raise HeadError(HTTPStatus.NOT_IMPLEMENTED, "there is no such method")
    headers: dict[str, str] = {}
    for field in fields:
        name, colon, value = field.partition(":")
        if not colon or not _NAME.fullmatch(name):
            raise HeadError(HTTPStatus.BAD_REQUEST, "a header is malformed")
        before = headers.get(name.lower())
        headers[name.lower()] = value.strip() if before is None else f"{before}, {value.strip()}"
    if not _LENGTH.fullmatch(headers.get("content-length", "0")):
        raise HeadError(HTTPStatus.BAD_REQUEST, "Content-Length is no number")
    absolute = _ABSOLUTE.match(path)
    if absolute is not None:
        path = "/" + path[absolute.end() :].removeprefix("/")
    return Head(method, path, version, headers)
