# SPDX-License-Identifier: Apache-2.0
"""What is served where: metrics, health and a landing page, and how an answer is compressed. Pure; owns nothing.

Data comes from two callables, `render` (Accept header -> content type and body) and `not_ready` (why, "" when ready).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from http import HTTPStatus

TEXT = "text/plain; charset=utf-8"

Render = Callable[[str], tuple[str, bytes]]


@dataclass(frozen=True, slots=True)
class Page:
    """An answer before it is compressed."""

    status: HTTPStatus
    content_type: str
    body: bytes


Routes = Mapping[str, Callable[[str], Page]]


def node_routes(telemetry_path: str, render: Render, not_ready: Callable[[], str], about: str = "") -> Routes:
    """What is served where. `about` is a line for the landing page, such as the mark of a simulated node."""

    def metrics(accept: str) -> Page:
        return Page(HTTPStatus.OK, *render(accept))

    def ready(_accept: str) -> Page:
        reason = not_ready()
        if reason:
            return text_page(HTTPStatus.SERVICE_UNAVAILABLE, f"not ready: {reason}")
        return text_page(HTTPStatus.OK, "ready")

    return {
        "/": lambda _accept: _landing(telemetry_path, about),
        "/-/healthy": lambda _accept: text_page(HTTPStatus.OK, "healthy"),
        "/-/ready": ready,
        telemetry_path: metrics,
    }


def text_page(status: HTTPStatus, text: str) -> Page:
    """One line of plain text."""
    return Page(status, TEXT, f"{text}\n".encode(errors="backslashreplace"))


def _landing(telemetry_path: str, about: str) -> Page:
    import html  # noqa: PLC0415 - all of HTML's entities, 0.4 MiB, for a page that hardly anybody sees

    path = html.escape(telemetry_path)
    body = (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8"><title>KubeNPU</title></head>\n'
        f"<body><h1>KubeNPU</h1>\n<p>{html.escape(about)}</p>\n"
        f'<p><a href="{path}">Metrics</a> <a href="/-/healthy">Healthy</a> <a href="/-/ready">Ready</a></p>\n'
        "</body></html>\n"
    )
    return Page(HTTPStatus.OK, "text/html; charset=utf-8", body.encode(errors="backslashreplace"))


def accepts_gzip(accept_encoding: str) -> bool:
    """Whether gzip is named and not refused with q=0."""
    for offer in accept_encoding.lower().split(","):
        coding, *parameters = (part.strip() for part in offer.split(";"))
        if coding == "gzip":
            return not any(p.startswith("q=") and not p[2:].strip("0.") for p in parameters)
    return False
