# SPDX-License-Identifier: Apache-2.0
"""The client of kubenpud's metrics: fetches one scrape and gives rows back. Keeps no connection, changes nothing."""

from __future__ import annotations

import http.client
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from prometheus_client.parser import text_string_to_metric_families

from kubenpu.model.errors import SourceError

DEFAULT_URL = "http://127.0.0.1:10074/metrics"
_TIMEOUT_S = 10.0
_MAX_BYTES = 64 << 20


@dataclass(frozen=True, slots=True)
class Row:
    """One sample: metric name with its suffix, labels, value."""

    name: str
    labels: Mapping[str, str]
    value: float


def fetch(url: str = DEFAULT_URL) -> list[Row]:
    """All samples of one scrape. Raises SourceError when the daemon does not answer or answers something else."""
    if not url.startswith(("http://", "https://")):
        raise SourceError(f"{url} is not an http URL", f"Give one like {DEFAULT_URL}")
    request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked above
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - checked above
            text = answer.read(_MAX_BYTES).decode()
        return list(_rows(text))
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        reason = getattr(e, "reason", None) or e
        raise SourceError(f"kubenpud does not answer at {url} ({reason})", "Start it: systemctl start kubenpud") from e
    except (ValueError, IndexError) as e:
        raise SourceError(f"what answers at {url} is not kubenpud ({e})", "Name the address of kubenpud") from e


def _rows(text: str) -> Iterator[Row]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Row(sample.name, sample.labels, sample.value)
