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
    try:
        request = urllib.request.Request(url, headers={"Accept": "text/plain;version=0.0.4"})  # noqa: S310 - checked above
    except ValueError as e:
        raise SourceError(f"{url} is not an http URL ({e})", f"Give one like {DEFAULT_URL}") from e
    try:
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S) as answer:  # noqa: S310 - checked above
            body = answer.read(_MAX_BYTES)
            if answer.length:  # read() with a limit does not mind an answer that breaks off
                raise http.client.IncompleteRead(body, answer.length)
        return list(_rows(body.decode()))
    except urllib.error.HTTPError as e:
        e.close()
        raise _unanswered(url, e.reason) from e
    except (urllib.error.URLError, http.client.HTTPException, OSError) as e:
        raise _unanswered(url, getattr(e, "reason", None) or e) from e
    except (ValueError, IndexError) as e:
        raise SourceError(
            f"what answers at {url} is not kubenpud ({str(e) or 'no metrics'})", "Name the address of kubenpud"
        ) from e


def _unanswered(url: str, reason: object) -> SourceError:
    return SourceError(f"kubenpud does not answer at {url} ({reason})", "Start it: systemctl start kubenpud")


def _rows(text: str) -> Iterator[Row]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield Row(sample.name, sample.labels, float(sample.value))  # the library gives int for a whole number
