# SPDX-License-Identifier: Apache-2.0
"""The parts of prometheus_client that kubenpud uses. Import them from nowhere else in kubenpud.

Running its package, or the module that writes the text format, imports a web server and an HTTP client, 1.0 MiB, and
OpenSSL.
"""

from __future__ import annotations

from kubenpu.exporters.parts import beside_package

with beside_package("prometheus_client"):
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.openmetrics.exposition import generate_latest as write_openmetrics
    from prometheus_client.registry import Collector, CollectorRegistry
    from prometheus_client.utils import floatToGoString

__all__ = [
    "Collector",
    "CollectorRegistry",
    "CounterMetricFamily",
    "GaugeMetricFamily",
    "floatToGoString",
    "write_openmetrics",
]
