# SPDX-License-Identifier: Apache-2.0
"""The part of METRICS that tells of device time and memory, as drivers show them in fdinfo. Pure, as metrics.py.

Refuses to invent: a driver that tells nothing has no series, and memory has none while nobody looks.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kubenpu.exporters.metric import Metric, Point, Scrape
from kubenpu.model.identity import OwnerKind
from kubenpu.model.view import ClientUsage

FDINFO = "kubenpu-clients: fdinfo"
TIME = f"{FDINFO}; the GPU scheduler's events where a driver does not tell"
MEMORY = f"{FDINFO}; dmem.current where a driver never tells"
POD_LABELS = ("pod", "namespace", "container", "device")
HOST_LABELS = ("unit", "device")


def _engines(kind: OwnerKind) -> Callable[[Scrape], Iterator[Point]]:
    return lambda scrape: (
        Point((*labels, client.device, engine), ns / 1e9)
        for labels, client in _clients(scrape, kind)
        for engine, ns in client.engine_ns
    )


def _memory(kind: OwnerKind) -> Callable[[Scrape], Iterator[Point]]:
    return lambda scrape: (
        Point((*labels, client.device, region), size)
        for labels, client in _clients(scrape, kind)
        for region, size in client.memory
    )


def _clients(scrape: Scrape, kind: OwnerKind) -> Iterator[tuple[tuple[str, ...], ClientUsage]]:
    for client in scrape.view.clients:
        if client.owner.kind is kind:
            owner = client.owner
            pod = (owner.pod, owner.namespace, owner.container)
            yield (pod if kind is OwnerKind.POD else (owner.unit,)), client


def _device_engines(scrape: Scrape) -> Iterator[Point]:
    for device in scrape.view.client_totals:
        yield from (Point((device.device, engine), ns / 1e9) for engine, ns in device.engine_ns)


CLIENT_METRICS: tuple[Metric, ...] = (
    Metric(
        "kubenpu_engine_seconds_total",
        "counter",
        (*POD_LABELS, "engine"),
        "Time that engines of a device worked for a container of a pod, as the driver tells.",
        "seconds",
        TIME,
        _engines(OwnerKind.POD),
    ),
    Metric(
        "kubenpu_memory_bytes",
        "gauge",
        (*POD_LABELS, "region"),
        "Memory of a device, or of the node for it, that a container of a pod has now; shared buffers count for each.",
        "bytes",
        MEMORY,
        _memory(OwnerKind.POD),
    ),
    Metric(
        "kubenpu_host_engine_seconds_total",
        "counter",
        (*HOST_LABELS, "engine"),
        "Time that engines of a device worked for something outside pods.",
        "seconds",
        TIME,
        _engines(OwnerKind.HOST),
    ),
    Metric(
        "kubenpu_host_memory_bytes",
        "gauge",
        (*HOST_LABELS, "region"),
        "Memory that something outside pods has now.",
        "bytes",
        MEMORY,
        _memory(OwnerKind.HOST),
    ),
    Metric(
        "kubenpu_device_engine_seconds_total",
        "counter",
        ("device", "engine"),
        "Time that engines of a device worked for anybody, also for whose series have ended or who has no name.",
        "seconds",
        TIME,
        _device_engines,
    ),
    Metric(
        "kubenpu_device_clients_ended_total",
        "counter",
        ("device",),
        "Clients that were closed; what each used after it was last looked at is in no number.",
        "clients",
        FDINFO,
        lambda scrape: (Point((device.device,), device.ended) for device in scrape.view.client_totals),
    ),
)
