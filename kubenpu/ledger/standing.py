# SPDX-License-Identifier: Apache-2.0
"""What the ledger believes about one cgroup: whose it is, whether that can still change, whether it is gone.

Owns two values and the two questions everything else asks of them. Fed by `Ledger` only; does no I/O.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kubenpu.model.identity import Owner, OwnerKind


@dataclass(frozen=True, slots=True)
class Standing:
    """`final` False: the owner is a guess that may change. `dead_since`: seconds of CLOCK_BOOTTIME, None: alive."""

    owner: Owner
    final: bool
    dead_since: float | None = None


Standings = Mapping[int, Standing]

NOBODY = Owner(OwnerKind.UNKNOWN)
UNASKED = Standing(NOBODY, final=False)


def shown_owner(standing: Standing) -> Owner:
    """The owner that sinks see. Until the answer is final it is UNKNOWN, so that no counter moves between series."""
    if standing.final:
        return standing.owner
    return Owner(OwnerKind.UNKNOWN, pod_uid=standing.owner.pod_uid, container_id=standing.owner.container_id)


def series_owner(owner: Owner) -> Owner:
    """The owner without what is no label: two pods of one name are one series and must leave together."""
    match owner.kind:
        case OwnerKind.POD:
            return Owner(OwnerKind.POD, namespace=owner.namespace, pod=owner.pod, container=owner.container)
        case OwnerKind.HOST:
            return Owner(OwnerKind.HOST, unit=owner.unit)
        case OwnerKind.UNKNOWN:
            return owner
