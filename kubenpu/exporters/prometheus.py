# SPDX-License-Identifier: Apache-2.0
"""Renders the table METRICS as Prometheus text or OpenMetrics.

Data comes from a callable that returns the current View; nothing is cached, so a series goes when its source goes.
Label values come from workloads: they are made printable and bounded, and series whose labels are equal after that
are added up, so that no label set appears twice. Refuses to put timestamps on values, to pass a client's header on to
the library, and to give start times (*_created), which Prometheus 2 stores as series, one for each counter.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator

from kubenpu.exporters.metric import Metric, Point, Scrape, WorkOf
from kubenpu.exporters.metrics import METRICS
from kubenpu.exporters.prometheus_parts import (
    Collector,
    CollectorRegistry,
    CounterMetricFamily,
    GaugeMetricFamily,
    floatToGoString,
    write_openmetrics,
)
from kubenpu.model.device import VisibilityOf
from kubenpu.model.text import clean_label
from kubenpu.model.view import View

OPENMETRICS = "application/openmetrics-text"
# What is written is the same with every version of the library; what it calls that is not.
CONTENT_TYPES = {
    False: "text/plain; version=0.0.4; charset=utf-8",
    True: f"{OPENMETRICS}; version=1.0.0; charset=utf-8",
}


class ViewCollector(Collector):
    """Feeds a dedicated registry."""

    def __init__(
        self,
        get_view: Callable[[], View],
        visibility: VisibilityOf,
        loss_reasons: tuple[str, ...] = (),
        work_of: WorkOf = lambda vendor: None,
    ) -> None:
        self._get_view = get_view
        self._work_of = work_of
        self._visibility = visibility
        self._loss_reasons = loss_reasons

    def describe(self) -> list[CounterMetricFamily | GaugeMetricFamily]:
        """Nothing in advance: registering must not read a View."""
        return []

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        view = self._get_view()
        submits = view.submit_vendors(self._visibility)
        scrape = Scrape(view, submits, self._visibility, self._loss_reasons, self._work_of)
        clean = _Once(clean_label)
        for metric in METRICS:
            points = _merge(metric, metric.points(scrape), clean)
            if points:
                yield _family(metric, points)


class Exposition:
    """Renders a scrape in the format its Accept header prefers. One at a time: rendering holds the interpreter."""

    def __init__(
        self,
        get_view: Callable[[], View],
        visibility: VisibilityOf,
        loss_reasons: tuple[str, ...] = (),
        work_of: WorkOf = lambda vendor: None,
    ) -> None:
        self._lock = threading.Lock()
        self._registry = CollectorRegistry(auto_describe=False)
        self._registry.register(ViewCollector(get_view, visibility, loss_reasons, work_of))

    def render(self, accept: str) -> tuple[str, bytes]:
        """Content type and body. The client's header is reduced to one of two answers."""
        openmetrics = prefers_openmetrics(accept)
        write = write_openmetrics if openmetrics else write_text
        with self._lock:
            return CONTENT_TYPES[openmetrics], write(self._registry)


def write_text(registry: CollectorRegistry) -> bytes:
    """The text format, of counters and gauges; see prometheus_parts.py why it is not the library that writes it."""
    lines = []
    escaped = _Once(_escape)
    for family in registry.collect():
        name = f"{family.name}_total" if family.type == "counter" else family.name
        lines += [f"# HELP {name} {family.documentation}", f"# TYPE {name} {family.type}"]
        keys = sorted(family.samples[0].labels)  # every sample has the same
        labels = ",".join(f'{key}="%s"' for key in keys)
        series = f"{name}{{{labels}}}" if keys else name
        for sample in family.samples:
            values = tuple(map(escaped.__getitem__, map(sample.labels.__getitem__, keys)))
            lines.append(f"{series % values} {floatToGoString(sample.value)}")  # type: ignore[no-untyped-call]
    return "".join(f"{line}\n" for line in lines).encode()


class _Once(dict[str, str]):
    """Texts by what they were made of: within a scrape a label comes back with every kind of call."""

    def __init__(self, make: Callable[[str], str]) -> None:
        self._make = make

    def __missing__(self, text: str) -> str:
        made = self[text] = self._make(text)
        return made


def _escape(label: str) -> str:
    return label.replace("\\", r"\\").replace("\n", r"\n").replace('"', r"\"")


def prefers_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics has a higher q than every kind of plain text; the earlier of two equals wins."""
    best_quality, best_type = 0.0, ""
    for offer in accept.split(","):
        media_type, *parameters = (part.strip().lower() for part in offer.split(";"))
        quality = next((_quality(p[2:]) for p in parameters if p.startswith("q=")), 1.0)
        if media_type in {OPENMETRICS, "text/plain", "text/*", "*/*"} and quality > best_quality:
            best_quality, best_type = quality, media_type
    return best_type == OPENMETRICS


def _quality(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return 0.0


def _merge(metric: Metric, points: Iterable[Point], clean: _Once) -> dict[tuple[str, ...], Point]:
    """One point per label set: counters and calls add up, other gauges keep the largest."""
    merged: dict[tuple[str, ...], Point] = {}
    for point in points:
        labels = tuple(map(clean.__getitem__, point.labels))
        old = merged.get(labels)
        merged[labels] = point if old is None else _add(metric, old, point)
    return merged


def _add(metric: Metric, one: Point, other: Point) -> Point:
    return Point(one.labels, one.value + other.value if metric.type == "counter" else max(one.value, other.value))


def _family(metric: Metric, points: dict[tuple[str, ...], Point]) -> CounterMetricFamily | GaugeMetricFamily:
    unit = metric.unit if metric.unit == "seconds" else ""
    if metric.type == "counter":
        counter = CounterMetricFamily(metric.name, metric.help, labels=metric.labels, unit=unit)
        for labels, point in points.items():
            counter.add_metric(labels, point.value)
        return counter
    gauge = GaugeMetricFamily(metric.name, metric.help, labels=metric.labels, unit=unit)
    for labels, point in points.items():
        gauge.add_metric(labels, point.value)
    return gauge
