# SPDX-License-Identifier: Apache-2.0
"""The metrics of the node service itself: losses, conservation, cells, hooks, sources. Pure; part of METRICS."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kubenpu.exporters.metric import CELLS, Metric, Point, Scrape
from kubenpu.model.sample import OFF


def _drops(scrape: Scrape) -> Iterator[Point]:
    known = dict.fromkeys(scrape.loss_reasons, 0) if scrape.counting else {}
    return (Point((reason,), count) for reason, count in sorted({**known, **scrape.view.dropped}.items()))


def _hook_up(scrape: Scrape) -> Iterator[Point]:
    return (Point((hook.hook, hook.mechanism), hook.mechanism != OFF) for hook in scrape.view.hooks if hook.needed)


def _source_up(scrape: Scrape) -> Iterator[Point]:
    return (Point((source.source,), source.up) for source in scrape.view.sources)


def _source_duration(scrape: Scrape) -> Iterator[Point]:
    return (Point((source.source,), source.duration_seconds) for source in scrape.view.sources)


def _imbalance(scrape: Scrape) -> Iterator[Point]:
    devices = (device for device in scrape.view.device_usage if scrape.view.counts(device.hooks))
    return (Point((device.device,), device.imbalance) for device in devices)


def _single(value: float | None) -> Iterable[Point]:
    return () if value is None else (Point((), value),)


NODE_METRICS: tuple[Metric, ...] = (
    Metric(
        "kubenpu_events_dropped_total",
        "counter",
        ("reason",),
        "Calls and names that could not be recorded, by reason.",
        "events",
        "kernel: loss counters",
        _drops,
    ),
    Metric(
        "kubenpu_attribution_imbalance",
        "gauge",
        ("device",),
        "Device total minus everything attributed or declared lost, worst kind; 0 is right.",
        "calls",
        "ledger: cells against device totals",
        _imbalance,
    ),
    Metric(
        "kubenpu_early_retirements_total",
        "counter",
        (),
        "Cgroups whose series ended before the retention time because counter cells ran short.",
        "cgroups",
        "ledger",
        lambda scrape: _single(scrape.view.retired_early),
    ),
    Metric(
        "kubenpu_dbus_dropped_total",
        "counter",
        (),
        "Signals and refusals that the message bus did not take; absent where D-Bus is not served.",
        "messages",
        "dbus",
        lambda scrape: _single(scrape.view.dbus_dropped),
    ),
    Metric(
        "kubenpu_cgroup_index_rebuilds_total",
        "counter",
        (),
        "Walks over the cgroup tree to find a cgroup by its id.",
        "walks",
        "identity: index",
        lambda scrape: _single(scrape.view.index_rebuilds),
    ),
    Metric(
        "kubenpu_slots_used",
        "gauge",
        (),
        "Counter cells in use, one per cgroup and device.",
        "cells",
        CELLS,
        lambda scrape: _single(scrape.view.slots_used if scrape.view.slots_max else None),
    ),
    Metric(
        "kubenpu_slots_max",
        "gauge",
        (),
        "Counter cells there are.",
        "cells",
        CELLS,
        lambda scrape: _single(scrape.view.slots_max or None),
    ),
    Metric(
        "kubenpu_hook_up",
        "gauge",
        ("hook", "mechanism"),
        "1 while the hook is attached; mechanism off: it is not, and its series are absent.",
        "1",
        "kernel: hooks",
        _hook_up,
    ),
    Metric(
        "kubenpu_source_up",
        "gauge",
        ("source",),
        "1 if the source answered when it was last asked.",
        "1",
        "each source",
        _source_up,
    ),
    Metric(
        "kubenpu_source_duration_seconds",
        "gauge",
        ("source",),
        "How long the source took when it was last asked.",
        "seconds",
        "each source",
        _source_duration,
    ),
    Metric(
        "kubenpu_counting_since_seconds",
        "gauge",
        (),
        "Unix time since which calls are counted; absent while no hook is attached.",
        "seconds",
        "kernel: hooks",
        lambda scrape: _single(scrape.view.counting_since),
    ),
    Metric(
        "kubenpu_simulated",
        "gauge",
        (),
        "1 on a simulated node: none of its devices, pods and calls are real.",
        "1",
        "start option",
        lambda scrape: _single(scrape.view.simulated),
    ),
    Metric(
        "kubenpu_build_info",
        "gauge",
        ("version",),
        "The running version.",
        "1",
        "package",
        lambda scrape: iter([Point((scrape.view.version,), 1)]),
    ),
)
