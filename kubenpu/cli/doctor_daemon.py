# SPDX-License-Identifier: Apache-2.0
"""The checks of `kubenpuctl doctor` that ask kubenpud, and where a daemon with such settings is to be asked.

Data comes from one scrape. That nobody may read it is no failure: a daemon with passwords is a daemon that runs.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kubenpu.cli.doctor_findings import FAIL, OK, WARN, Check, Examination, Finding
from kubenpu.config.settings import Settings
from kubenpu.kernel.losses import explain_loss
from kubenpu.model.view import OPTIONAL_SOURCES

if TYPE_CHECKING:
    from kubenpu.exporters.scrape import Row

_UNIX = "unix:"
_SYSTEMD_ADDRESSES = ("unix:/run/kubenpu/metrics.sock", ":10074")  # of kubenpud-metrics.socket

_TOLD = ("kubenpu_device_engine_seconds_total", "kubenpu_memory_bytes", "kubenpu_host_memory_bytes")


def find_urls(settings: Settings) -> list[str]:
    """Where a daemon with these settings serves its metrics, sockets first: they need neither name nor interface."""
    addresses = _SYSTEMD_ADDRESSES if settings.systemd_socket else settings.listen_addresses
    urls = [f"{address}:{settings.telemetry_path}" for address in addresses if address.startswith(_UNIX)]
    schemes = ("https", "http") if settings.web_config_file else ("http",)
    hosts = [_reachable(address) for address in addresses if not address.startswith(_UNIX)]
    return urls + [f"{scheme}://{host}{settings.telemetry_path}" for host in hosts for scheme in schemes]


def _reachable(address: str) -> str:
    """What stands for all addresses of this host can be asked itself, unless it is nothing."""
    return f"127.0.0.1{address}" if address.startswith(":") else address


def _daemon(node: Examination) -> Iterator[Finding]:
    url, rows, error, refused = node.scrape
    if error is not None:
        yield Finding("kubenpud", error.cause, "an answer", error.remedy, WARN if refused else FAIL)
        return
    if any(r.name == "kubenpu_simulated" and r.value for r in rows):
        yield Finding("kubenpud", f"a simulated node answers at {url}", "the daemon of this node", "", WARN)
    version = next((r.labels.get("version", "") for r in rows if r.name == "kubenpu_build_info"), "")
    found = f"version {version}" if version else "something that is not kubenpud"
    yield Finding("kubenpud", found, f"an answer at {url}", "", OK if version else FAIL)


def _sources(node: Examination) -> Iterator[Finding]:
    rows = node.values("kubenpu_source_up")
    down = [row.labels.get("source", "?") for row in rows if not row.value]
    remedy = "Run: journalctl -u kubenpud, which has the reasons" if down else ""
    found = f"no answer from {', '.join(down)}" if down else f"{len(rows)} answer"
    status = FAIL if set(down) - OPTIONAL_SOURCES else WARN if down else OK
    yield Finding("sources", found, "every source answers", remedy, status)


def _losses(node: Examination) -> Iterator[Finding]:
    up = {row.labels.get("source"): row.value for row in node.values("kubenpu_source_up")}
    if not up.get("counters"):
        yield Finding("losses", "not known: kubenpud has no counters", "an answer", "", WARN)
        return
    lost = [row for row in node.values("kubenpu_events_dropped_total") if row.value]
    found = ", ".join(f"{row.labels.get('reason', '?')}: {row.value:.0f}" for row in lost)
    remedy = ". ".join(explain_loss(row.labels.get("reason", "?")) for row in lost)
    yield Finding("losses", found or "none since boot", "none", remedy, WARN if lost else OK)


def _names(node: Examination) -> Iterator[Finding]:
    calls = sum(row.value for row in node.values("kubenpu_unattributed_ioctls"))
    found = f"{calls:.0f} calls of pods that no container runtime has confirmed" if calls else "every pod is known"
    remedy = "Name the runtime's socket in identity.cri_sockets if it is not among the runtimes above" if calls else ""
    yield Finding("names", found, "every pod is known", remedy, WARN if calls else OK)


def _device_time(node: Examination) -> Iterator[Finding]:
    visible = [row for row in node.values("kubenpu_device_visibility") if row.value]
    promised = {_device(row) for row in visible if row.labels.get("what") in ("device_time", "device_memory")}
    silent = sorted(promised - {_device(row) for metric in _TOLD for row in node.values(metric)})
    up = {row.labels.get("source"): row.value for row in node.values("kubenpu_source_up")}.get("clients")
    needed = "kubenpu-clients, for device time and memory"
    if not promised:
        yield Finding("device time", "no driver here tells it", needed)
    elif not node.facts.btf:
        yield Finding("device time", "none: the kernel has no BTF", needed, "Use a kernel with BTF", WARN)
    elif up is None:
        remedy = "Run: systemctl enable --now kubenpu-clients"
        yield Finding("device time", "kubenpu-clients has not run", needed, remedy, WARN)
    elif not up:
        remedy = "Run: systemctl status kubenpu-clients, and start it if it does not run"
        yield Finding("device time", "incomplete, late, or never looked at", needed, remedy, WARN)
    else:
        found = f"told by {len(promised) - len(silent)} of {len(promised)} device{'s' if len(promised) != 1 else ''}"
        more = f"; not by {', '.join(_with_drivers(node, silent))}" if silent else ""
        remedy = "Nothing while nobody has them open; else README.md tells of which kernels and devices it is known"
        yield Finding("device time", found + more, needed, remedy if silent else "")


def _device(row: Row) -> str:
    return row.labels.get("device", "?")


def _with_drivers(node: Examination, devices: Iterable[str]) -> Iterator[str]:
    vendors = {_device(row): row.labels.get("vendor", "-") for row in node.values("kubenpu_device_info")}
    return (f"{device} ({vendors.get(device, '-')})" for device in devices)


def _balance(node: Examination) -> Iterator[Finding]:
    every = node.values("kubenpu_attribution_imbalance")
    if not every:
        yield Finding("balance", "not known: kubenpud has no counters", "an answer", "", WARN)
        return
    rows = [row for row in every if row.value]
    found = ", ".join(f"{row.labels.get('device', '?')}: {row.value:.0f}" for row in rows)
    remedy = "Report this with the output of kubenpuctl doctor --json" if rows else ""
    needed = "every counted call attributed or declared lost"
    yield Finding("balance", found or "even", needed, remedy, FAIL if rows else OK)


DAEMON_CHECKS: tuple[tuple[str, Check], ...] = (
    ("kubenpud", _daemon),
    ("sources", _sources),
    ("losses", _losses),
    ("names", _names),
    ("balance", _balance),
    ("device time", _device_time),
)
