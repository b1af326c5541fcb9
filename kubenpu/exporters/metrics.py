# SPDX-License-Identifier: Apache-2.0
"""The table METRICS: every metric family of KubeNPU, what it means and how it is read off a View.

Owns names, labels and meaning; prometheus.py renders them and the man page lists them. Pure: data comes from the View
alone. Refuses to invent: no hook up, no ioctl series; no submit series where the driver shows no submission.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass

from kubenpu.exporters.client_metrics import CLIENT_METRICS
from kubenpu.exporters.metric import CELLS, Metric, Point, Scrape
from kubenpu.exporters.node_metrics import NODE_METRICS
from kubenpu.model.device import Visibility
from kubenpu.model.identity import OwnerKind
from kubenpu.model.kinds import KIND_LABELS, KINDS, Kind
from kubenpu.model.sample import HOOK_WITH_OUTCOME, ZERO, Counts
from kubenpu.model.view import Usage, sees_outcome

# A code and no share: how much of it partly is, nobody knows. Where there is nothing to see there is no code.
VISIBILITY_CODES = {Visibility.ALWAYS: 1.0, Visibility.PARTLY: 0.5, Visibility.NEVER: 0.0}


@dataclass(frozen=True, slots=True)
class Row:
    """Counts of one thing on one device; its series are one per kind. `labels` come before device and vendor."""

    labels: tuple[str, ...]
    device: str
    vendor: str | None
    counts: Counts
    hooks: tuple[str, ...]

    @property
    def device_labels(self) -> tuple[str, ...]:
        return (*self.labels, self.device, self.vendor or "-")


Rows = Callable[[Scrape], Iterable[Row]]


def _pods(scrape: Scrape) -> Iterator[Row]:
    for usage in _usage(scrape, OwnerKind.POD):
        labels = (usage.owner.pod, usage.owner.namespace, usage.owner.container)
        yield Row(labels, usage.device, usage.vendor, usage.counts, usage.hooks)


def _hosts(scrape: Scrape) -> Iterator[Row]:
    for usage in _usage(scrape, OwnerKind.HOST):
        yield Row((usage.owner.unit,), usage.device, usage.vendor, usage.counts, usage.hooks)


def _devices(scrape: Scrape) -> Iterator[Row]:
    for device in scrape.view.device_usage:
        yield Row((), device.device, device.vendor, device.counts, device.hooks)


def _departed(scrape: Scrape) -> Iterator[Row]:
    for device in scrape.view.device_usage:
        yield Row((), device.device, device.vendor, device.departed, device.hooks)


def _unattributed(scrape: Scrape) -> Iterator[Row]:
    for device in scrape.view.device_usage:
        counts = (u.counts for u in _usage(scrape, OwnerKind.UNKNOWN) if u.device == device.device)
        yield Row((), device.device, device.vendor, sum(counts, ZERO), device.hooks)


def _usage(scrape: Scrape, kind: OwnerKind) -> Iterator[Usage]:
    return (usage for usage in scrape.view.usage if usage.owner.kind is kind)


def _calls(rows: Rows) -> Callable[[Scrape], Iterator[Point]]:
    return lambda scrape: _per_kind(scrape, rows, lambda counts: counts.calls)


def _errors(rows: Rows) -> Callable[[Scrape], Iterator[Point]]:
    return lambda scrape: _per_kind(scrape, _with_outcome(rows), lambda counts: counts.errors)


def _waits(rows: Rows) -> Callable[[Scrape], Iterator[Point]]:
    return lambda scrape: (
        Point(row.device_labels, row.counts.wait_ns / 1e9)
        for row in _with_outcome(rows)(scrape)
        if scrape.view.counts(row.hooks)
    )


def _work(rows: Rows) -> Callable[[Scrape], Iterator[Point]]:
    """Of the hook that sees which calls ended well, whatever else counts for the device."""
    return lambda scrape: (
        Point((*row.device_labels, unit), row.counts.work)
        for row in rows(scrape)
        if scrape.view.counts(tuple({HOOK_WITH_OUTCOME}.intersection(row.hooks)))
        and (unit := scrape.work_of(row.vendor)) is not None
    )


def _with_outcome(rows: Rows) -> Rows:
    """Without devices whose calls are seen before the driver has them: how they end is not known."""
    return lambda scrape: (row for row in rows(scrape) if sees_outcome(row.hooks))


def _per_kind(scrape: Scrape, rows: Rows, read: Callable[[Counts], tuple[int, ...]]) -> Iterator[Point]:
    """All kinds, zeros too, so that the first call of a kind is an increase; not a submit nobody could have seen."""
    for row in rows(scrape):
        if not scrape.view.counts(row.hooks):
            continue
        submits_show = row.vendor in scrape.submit_vendors
        for kind, label, value in zip(KINDS, KIND_LABELS, read(row.counts), strict=True):
            if value or submits_show or kind is not Kind.SUBMIT:
                yield Point((*row.device_labels, label), value)


def _device_info(scrape: Scrape) -> Iterator[Point]:
    for device in scrape.view.devices:
        numa_node = "" if device.numa_node is None else str(device.numa_node)
        labels = (device.address, device.vendor or "-", device.driver or "", device.pci_id or "", numa_node)
        more = (device.model or "", device.uuid or "", device.partition_of or "")
        yield Point((*labels, *more, scrape.view.node), 1)


def _device_visibility(scrape: Scrape) -> Iterator[Point]:
    for device in scrape.view.devices:
        for what, visibility in scrape.visibility(device.vendor).items():
            if visibility in VISIBILITY_CODES:
                yield Point((device.address, what), VISIBILITY_CODES[visibility])


def _allocated(scrape: Scrape) -> Iterator[Point]:
    known = scrape.view.allocations
    for each in known.all if known is not None else ():
        yield Point((each.pod, each.namespace, each.container, each.device or "", each.resource, each.device_id), 1)


POD_LABELS = ("pod", "namespace", "container", "device", "vendor")
HOST_LABELS = ("unit", "device", "vendor")
DEVICE_LABELS = ("device", "vendor")
TOTALS = "kernel: device totals"

METRICS: tuple[Metric, ...] = (
    Metric(
        "kubenpu_ioctl_total",
        "counter",
        (*POD_LABELS, "kind"),
        "Calls of a container of a pod to an accelerator driver, failed ones included.",
        "calls",
        CELLS,
        _calls(_pods),
    ),
    Metric(
        "kubenpu_ioctl_errors_total",
        "counter",
        (*POD_LABELS, "kind"),
        "Those of kubenpu_ioctl_total that returned an error; completed work is the difference.",
        "calls",
        CELLS,
        _errors(_pods),
    ),
    Metric(
        "kubenpu_ioctl_wait_seconds_total",
        "counter",
        POD_LABELS,
        "Time a container of a pod spent inside calls of kind wait.",
        "seconds",
        CELLS,
        _waits(_pods),
    ),
    Metric(
        "kubenpu_submitted_work_total",
        "counter",
        (*POD_LABELS, "work"),
        "What successful submissions of a container of a pod handed over, in the unit in which the driver counts; only "
        "where its calls say how much.",
        "work",
        CELLS,
        _work(_pods),
    ),
    Metric(
        "kubenpu_host_ioctl_total",
        "counter",
        (*HOST_LABELS, "kind"),
        "Calls from outside pods: a systemd unit, a plain container, a user session.",
        "calls",
        CELLS,
        _calls(_hosts),
    ),
    Metric(
        "kubenpu_host_ioctl_errors_total",
        "counter",
        (*HOST_LABELS, "kind"),
        "Those of kubenpu_host_ioctl_total that returned an error.",
        "calls",
        CELLS,
        _errors(_hosts),
    ),
    Metric(
        "kubenpu_host_ioctl_wait_seconds_total",
        "counter",
        HOST_LABELS,
        "Time spent outside pods inside calls of kind wait.",
        "seconds",
        CELLS,
        _waits(_hosts),
    ),
    Metric(
        "kubenpu_host_submitted_work_total",
        "counter",
        (*HOST_LABELS, "work"),
        "The same of submissions from outside pods.",
        "work",
        CELLS,
        _work(_hosts),
    ),
    Metric(
        "kubenpu_device_ioctl_total",
        "counter",
        (*DEVICE_LABELS, "kind"),
        "Calls the driver of a device received, counted independently of who made them.",
        "calls",
        TOTALS,
        _calls(_devices),
    ),
    Metric(
        "kubenpu_departed_ioctl_total",
        "counter",
        (*DEVICE_LABELS, "kind"),
        "Calls of workloads whose own series ended: dead for the retention time, or cells ran short.",
        "calls",
        CELLS,
        _calls(_departed),
    ),
    Metric(
        "kubenpu_unattributed_ioctls",
        "gauge",
        (*DEVICE_LABELS, "kind"),
        "Calls whose caller has no confirmed name (yet); shrinks when names arrive.",
        "calls",
        CELLS,
        _calls(_unattributed),
    ),
    *CLIENT_METRICS,
    Metric(
        "kubenpu_device_info",
        "gauge",
        ("device", "vendor", "driver", "pci_id", "numa_node", "model", "uuid", "partition_of", "node"),
        "An accelerator of this node; vendor is its ioctl table, - for none.",
        "1",
        "sysfs",
        _device_info,
    ),
    Metric(
        "kubenpu_device_visibility",
        "gauge",
        ("device", "what"),
        "Whether submissions, memory and waits pass calls, and drivers tell device_time and device_memory of their "
        "clients: 1 always, 0.5 partly, 0 never; absent: not known, or there is nothing to submit.",
        "1",
        "driver tables",
        _device_visibility,
    ),
    Metric(
        "kubenpu_device_allocated",
        "gauge",
        ("pod", "namespace", "container", "device", "resource", "device_id"),
        "1 for each device that the kubelet has given to a container; without device where device_id does not tell it.",
        "1",
        "kubelet: pod-resources",
        _allocated,
    ),
    *NODE_METRICS,
)
