# SPDX-License-Identifier: Apache-2.0
"""How a workload and its counts are written, for people and as JSON, and what is to be said beside them. Pure."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from kubenpu.model.identity import Owner, OwnerKind
from kubenpu.model.sample import OFF

if TYPE_CHECKING:
    from kubenpu.exporters.dbus_client import CounterRow, CountsRow, NodeRow


def place_of(owner: Owner) -> tuple[str, str, str]:
    """Namespace, pod and container; what has none says in parentheses why."""
    match owner.kind:
        case OwnerKind.POD:
            return owner.namespace, owner.pod, owner.container
        case OwnerKind.HOST:
            return "(host)", owner.unit, ""
        case OwnerKind.UNKNOWN:
            return "(unknown)", owner.pod_uid, owner.container_id[:12]


def name_of(owner: Owner) -> str:
    """The same in one word, for lines that have little room."""
    return "/".join(part for part in place_of(owner) if part)


def show_seconds(seconds: float | None) -> str | None:
    return None if seconds is None else f"{seconds:.6f}"


def counts_to_json(counts: CountsRow) -> dict[str, object]:
    return {
        "calls": dict(counts.calls),
        "errors": counts.failed,
        "wait_seconds": counts.wait_seconds,
        "since": counts.since,
    }


def to_json(row: CounterRow, node: NodeRow) -> dict[str, object]:
    """Keys are stable; what a workload does not have is null."""
    owner = row.owner
    return {
        "kind": owner.kind.value,
        "namespace": owner.namespace or None,
        "pod": owner.pod or None,
        "container": owner.container or None,
        "pod_uid": owner.pod_uid or None,
        "container_id": owner.container_id or None,
        "unit": owner.unit or None,
        "host_kind": owner.host_kind.value if owner.host_kind else None,
        "image": owner.image or None,
        "device": row.device,
        "vendor": row.vendor,
        "alive": row.alive,
        "allocated": row.allocated,
        **counts_to_json(row.counts),
        "engine_seconds": row.engine_ns and {engine: ns / 1e9 for engine, ns in row.engine_ns.items()},
        "memory_bytes": row.memory and dict(row.memory),
        "simulated": node.simulated,
    }


def find_notes(node: NodeRow, rows: Iterable[CounterRow]) -> Iterator[str]:
    """What a reader of the counts has to know."""
    if node.simulated:
        yield "simulated node: these workloads do not use hardware"
    for hook, mechanism in node.hooks.items():
        if mechanism == OFF:
            yield f"hook {hook} is off, nothing is counted: run kubenpuctl doctor"
    unconfirmed: Counter[str] = Counter()
    for row in rows:
        if row.owner.kind is OwnerKind.UNKNOWN:
            unconfirmed[row.device] += sum(row.counts.calls.values())
    for device, calls in unconfirmed.items():
        yield f"{calls} calls on {device} belong to pods that no container runtime has confirmed"
