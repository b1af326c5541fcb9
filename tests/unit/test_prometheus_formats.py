# SPDX-License-Identifier: Apache-2.0
"""Which of its formats a scrape is answered in."""

from __future__ import annotations

import pytest

from kubenpu.exporters.prometheus import Exposition, prefers_openmetrics
from tests.unit.test_prometheus import PROMETHEUS_3, VIEW, visibility_of


@pytest.mark.parametrize(
    ("accept", "expected"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain;version=0.0.4", False),
        ("application/openmetrics-text", True),
        (PROMETHEUS_3, True),
        ("text/plain;version=0.0.4;q=0.6,application/openmetrics-text;version=1.0.0;q=0.5,*/*;q=0.4", False),
        ("application/openmetrics-text;q=0", False),
        ("application/openmetrics-text;q=junk", False),
        ("application/openmetrics-text;q=nan, text/plain", False),
        ("application/vnd.google.protobuf;q=0.9,text/plain;q=0.1", False),
        (",;,;;q=,", False),
    ],
)
def test_content_negotiation(accept: str, expected: bool) -> None:
    assert prefers_openmetrics(accept) is expected
    content_type, body = Exposition(lambda: VIEW, visibility_of).render(accept)
    start = "application/openmetrics-text; version=" if expected else "text/plain; version=0.0.4; charset=utf-8"
    assert content_type.startswith(start)
    assert body.endswith(b"# EOF\n") is expected


@pytest.mark.parametrize("version", ["99", "1.x", "1\r\nX: y", "-1"])
def test_a_strange_version_does_not_reach_the_library(version: str) -> None:
    content_type, _ = Exposition(lambda: VIEW, visibility_of).render(f"application/openmetrics-text;version={version}")
    assert version not in content_type.replace("version=1.0.0", "").replace("version=0.0.1", "")
