# SPDX-License-Identifier: Apache-2.0
"""Adds the kernel's cells up: usage per (owner, device), totals per device, and the check that nothing went missing.

Owns no state; every function is pure and gets its numbers from one `KernelSample`. Refuses to invent: a device slot
without an address keeps its counts under the name `slot-N`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kubenpu.ledger.standing import UNASKED, Standings, shown_owner
from kubenpu.model.clients import ClientUse, possible
from kubenpu.model.identity import Owner
from kubenpu.model.sample import HOOK_WITH_OUTCOME, ZERO, Cell, Counts, DeviceTotals, KernelSample
from kubenpu.model.view import Amounts, ClientTotals, ClientUsage, DeviceUsage, Usage


@dataclass(frozen=True, slots=True)
class Labels:
    """Which device a slot is. `vendors` has the driver table of every address that has one, `hooks` what counts for a
    slot, `auxiliary` the addresses of such devices."""

    addresses: Mapping[int, str]
    vendors: Mapping[str, str]
    hooks: Mapping[int, tuple[str, ...]]
    auxiliary: Container[str] = ()

    def address(self, slot: int) -> str:
        return self.addresses.get(slot, f"slot-{slot}")

    def vendor(self, slot: int) -> str | None:
        return self.vendors.get(self.address(slot))

    def hooks_of(self, slots: Iterable[int]) -> tuple[str, ...]:
        """Of all the slots that are one device; none is known for a slot of an older kubenpu-probe."""
        return tuple(sorted({hook for slot in slots for hook in self.hooks.get(slot, ())})) or (HOOK_WITH_OUTCOME,)


def usage(
    sample: KernelSample, standings: Standings, labels: Labels, boot_unix_s: float, clients: Iterable[ClientUsage]
) -> tuple[Usage, ...]:
    """One entry per (owner, device), in a stable order."""
    by_owner = {(each.owner, each.device): each for each in clients}
    cells: defaultdict[tuple[Owner, str], list[Cell]] = defaultdict(list)
    alive: set[Owner] = set()
    for cell in sample.cells:
        if cell.cgroup_id:
            standing = standings.get(cell.cgroup_id, UNASKED)
            owner = shown_owner(standing)
            cells[owner, labels.address(cell.device)].append(cell)
            if standing.dead_since is None:
                alive.add(owner)
    return tuple(
        Usage(
            owner=owner,
            device=address,
            vendor=labels.vendor(found[0].device),
            counts=_sum(found),
            since=boot_unix_s + min(cell.first_ns for cell in found) / 1e9,
            alive=owner in alive,
            hooks=labels.hooks_of(cell.device for cell in found),
            first_ns=min(cell.first_ns for cell in found),
            clients=by_owner.get((owner, address)),
        )
        for (owner, address), found in sorted(cells.items(), key=_order)
    )


def device_usage(sample: KernelSample, labels: Labels, since: float) -> tuple[DeviceUsage, ...]:
    """One entry per device; slots that are one device (it left and came back) are added up."""
    slots: defaultdict[str, list[int]] = defaultdict(list)
    for slot in sorted(sample.after):
        slots[labels.address(slot)].append(slot)
    cells: defaultdict[int, list[Cell]] = defaultdict(list)
    for cell in sample.cells:
        cells[cell.device].append(cell)
    return tuple(
        DeviceUsage(
            device=address,
            vendor=labels.vendor(found[0]),
            counts=sum((sample.after[slot].counts for slot in found), ZERO),
            departed=_sum(cell for slot in found for cell in cells[slot] if not cell.cgroup_id),
            lost=_add_up(sample.after[slot].lost for slot in found),
            imbalance=max((imbalance(sample, slot, _sum(cells[slot])) for slot in found), key=abs),
            since=since,
            hooks=labels.hooks_of(found),
            settled=sum((_settled(sample, slot, _sum(cells[slot])) for slot in found), ZERO),
            auxiliary=address in labels.auxiliary,
        )
        for address, found in sorted(slots.items())
    )


def client_usage(
    uses: Iterable[ClientUse], standings: Standings, charged: Mapping[tuple[int, str], Mapping[str, int]]
) -> tuple[ClientUsage, ...]:
    """One entry per (owner, device), in a stable order. `charged` is memory that no client tells, by cgroup and
    device."""
    found: defaultdict[tuple[Owner, str], list[ClientUse]] = defaultdict(list)
    silent = (ClientUse(cgroup_id, "", device, 0, {}, memory, 0) for (cgroup_id, device), memory in charged.items())
    for use in (*uses, *silent):
        if use.cgroup_id:
            found[shown_owner(standings.get(use.cgroup_id, UNASKED)), use.device].append(use)
    return tuple(
        ClientUsage(
            owner=owner,
            device=device,
            engine_ns=tuple(_add_up(use.engine_ns for use in of).items()),
            memory=_memory(of),
            ended=sum(use.ended for use in of),
            first_ns=min((use.first_ns for use in of if use.first_ns), default=0),
            earlier_ns=sum(use.earlier_ns for use in of),
        )
        for (owner, device), of in sorted(found.items(), key=_order)
    )


def _memory(uses: Sequence[ClientUse]) -> Amounts:
    """Nothing where that of one is not known: what the others have is not all."""
    known = [use.memory for use in uses if use.memory is not None]
    return tuple(possible(_add_up(known)).items()) if len(known) == len(uses) else ()


def client_totals(uses: Iterable[ClientUse]) -> tuple[ClientTotals, ...]:
    """One entry per device."""
    found: defaultdict[str, list[ClientUse]] = defaultdict(list)
    for use in uses:
        found[use.device].append(use)
    return tuple(
        ClientTotals(
            device,
            tuple(_add_up(use.engine_ns for use in of).items()),
            sum(use.ended for use in of),
            sum(use.earlier_ns for use in of),
        )
        for device, of in sorted(found.items())
    )


def dropped(sample: KernelSample) -> dict[str, int]:
    """Every event that is in no cell, by reason, whether its device is known or not."""
    return _add_up([sample.losses, *(totals.lost for totals in sample.after.values())])


def imbalance(sample: KernelSample, slot: int, attributed: Counts) -> int:
    """Calls of a device that neither a cell nor a loss explains; negative: cells hold more than the device saw.

    Calls go on while the sample is read, so the right answer lies between the totals read before and those read
    after the cells; inside that bracket it is 0. Losses have no kind: they may explain missing calls of any kind.
    """
    after = sample.after[slot]
    before = sample.before.get(slot, DeviceTotals(slot, ZERO, {}))
    lost_before, lost_after = sum(before.lost.values()), sum(after.lost.values())
    low, found, high = before.counts.calls, attributed.calls, after.counts.calls
    distances = [_outside(low[kind], found[kind], found[kind] + lost_after, high[kind]) for kind in range(len(found))]
    distances.append(_outside(sum(low), sum(found) + lost_before, sum(found) + lost_after, sum(high)))
    return max(distances, key=abs)


def _settled(sample: KernelSample, slot: int, attributed: Counts) -> Counts:
    """The device's total as of its cells. What it counted before they were read and they lack is lost for good."""
    return sample.before.get(slot, DeviceTotals(slot, ZERO, {})).counts.at_least(attributed)


def _outside(low: int, at_least: int, at_most: int, high: int) -> int:
    """Signed distance by which [at_least, at_most] misses [low, high]; positive: too little was attributed."""
    if at_most < low:
        return low - at_most
    return min(0, high - at_least)


def _order(item: tuple[tuple[Owner, str], object]) -> tuple[str, ...]:
    owner, address = item[0]
    return (
        owner.kind.value,
        owner.namespace,
        owner.pod,
        owner.container,
        owner.pod_uid,
        owner.container_id,
        owner.unit,
        address,
    )


def _sum(cells: Iterable[Cell]) -> Counts:
    return sum((cell.counts for cell in cells), ZERO)


def _add_up(parts: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """Sum by key; keys with 0 stay: a reason, an engine that is known is shown even when there was nothing of it."""
    total: dict[str, int] = {}
    for part in parts:
        for key, count in part.items():
            total[key] = total.get(key, 0) + count
    return total
