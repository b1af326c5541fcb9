# SPDX-License-Identifier: Apache-2.0
"""Adds device time up: from what clients say they used since they were opened to totals per cgroup, device and engine.

Fed one look after the other by kubenpu-clients, which owns it; does no I/O. Totals never go down, and what a device's
cgroups have adds up to what its clients were seen to use. Refuses to guess: what a client did after it was last looked
at is in no number, only that it ended is.

A client belongs to the cgroup of the process that holds it; of several it stays with the one it has, else the oldest
process. What it used before it is seen for the first time is the first one's. It may be in nobody's hands for a while,
on its way through a socket, and is remembered for that long: else it would count twice. Its id says which client it is;
its open file only while a sleeping device is not asked: a process may swap descriptors between the two readings.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from kubenpu.ledger.merges import plan_merges
from kubenpu.ledger.standing import UNASKED, Standing
from kubenpu.model.clients import ClientUse, possible
from kubenpu.model.fdinfo import Fdinfo
from kubenpu.model.sample import ZERO, Cell, KernelSample

MAX_USES = 4096
LOOKS_REMEMBERED = 8
CLOCK_SPAN_NS = 1_000_000_000
"""A device's cycle counter is timed over at least so long, so that the time one reading takes is a small error."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A client as one look found it. `cgroups`: of the tasks that hold it, the oldest process first; () when they were
    gone before they could be asked. `fdinfo` None: it was not read, its device sleeps. `begin_ns` and `end_ns` of
    CLOCK_MONOTONIC bracket the reading; `slept_ms`: how long the device has slept in its life."""

    device: str
    file: int
    cgroups: tuple[int, ...]
    fdinfo: Fdinfo | None
    begin_ns: int = 0
    end_ns: int = 0
    slept_ms: int = 0


@dataclass(slots=True)
class Client:
    """`engine_ns` and `busy` (cycles) are the highest values that were accounted for; `missed`: looks without it."""

    file: int
    cgroup_id: int
    engine_ns: dict[str, int] = field(default_factory=dict)
    busy: dict[str, int] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    missed: int = 0


@dataclass(slots=True)
class Clock:
    """How fast the cycle counter behind an engine runs: `cycles` in `ns`, 0 while that is not known.

    The counter stands while the device sleeps, so only spans without sleep count; of those the fastest is the nearest
    to the truth, as each is measured from before the first reading to after the second.
    """

    cycles: int = 0
    ns: int = 0
    last: int = 0
    last_ns: int = 0
    slept_ms: int = -1

    def read(self, value: int, seen: Seen) -> None:
        span = seen.end_ns - self.last_ns
        if seen.slept_ms == self.slept_ms and value >= self.last:
            if seen.begin_ns - self.last_ns < CLOCK_SPAN_NS:
                return
            if (value - self.last) * max(self.ns, 1) > self.cycles * span:
                self.cycles, self.ns = value - self.last, span
        self.last, self.last_ns, self.slept_ms = value, seen.begin_ns, seen.slept_ms


@dataclass(slots=True)
class Use:
    """Totals of one cgroup on one device. `dead_since`: seconds of CLOCK_BOOTTIME, None while the cgroup exists."""

    path: str
    first_ns: int
    dead_since: float | None = None
    engine_ns: dict[str, int] = field(default_factory=dict)
    ended: int = 0

    def take(self, other: Use) -> None:
        for engine, ns in other.engine_ns.items():
            self.engine_ns[engine] = self.engine_ns.get(engine, 0) + ns
        self.ended += other.ended
        self.first_ns = min(self.first_ns, other.first_ns)


@dataclass(slots=True)
class Accounts:
    """All that outlives a look. Clients by (device, client id), clocks by (device, engine), uses by (cgroup, device);
    cgroup 0 has what belongs to no series any more, or found no room for one."""

    clients: dict[tuple[str, int], Client] = field(default_factory=dict)
    clocks: dict[tuple[str, str], Clock] = field(default_factory=dict)
    uses: dict[tuple[int, str], Use] = field(default_factory=dict)

    def look(self, seen: Iterable[Seen], paths: Mapping[int, str], now_ns: int) -> None:
        """Takes one look at all clients in. `paths` has every cgroup of theirs; `now_ns` of CLOCK_BOOTTIME."""
        by_file, here = self.by_file(), set()
        for each in seen:
            key = (each.device, each.fdinfo.client_id) if each.fdinfo else by_file.get((each.device, each.file))
            if key is not None:
                here.add(key)
                self._see(key, each, paths, now_ns)
        for key, client in list(self.clients.items()):
            client.missed = 0 if key in here else client.missed + 1
            if client.missed:
                client.memory = {}
            if client.missed > LOOKS_REMEMBERED:
                self._end(key, now_ns)

    def by_file(self) -> dict[tuple[str, int], tuple[str, int]]:
        """Keys of clients by (device, open file). A new client may have the place of one that has just ended."""
        return {(key[0], client.file): key for key, client in self.clients.items()}

    def _see(self, key: tuple[str, int], seen: Seen, paths: Mapping[int, str], now_ns: int) -> None:
        if seen.fdinfo is None or not seen.cgroups:
            return
        client = self.clients.setdefault(key, Client(seen.file, seen.cgroups[0]))
        client.file = seen.file
        if client.cgroup_id not in seen.cgroups:
            client.cgroup_id = seen.cgroups[0]
        use = self._use(client.cgroup_id, seen.device, paths.get(client.cgroup_id, ""), now_ns)
        client.memory = dict(seen.fdinfo.memory)
        for engine, ns in self._grown(client, seen, seen.fdinfo):
            use.engine_ns[engine] = use.engine_ns.get(engine, 0) + ns

    def _grown(self, client: Client, seen: Seen, fdinfo: Fdinfo) -> Iterator[tuple[str, int]]:
        """How much more it used, zeros too. A value may go back for a while: nothing is added until it is passed."""
        for engine, ns in fdinfo.engine_ns.items():
            before = client.engine_ns.get(engine, 0)
            client.engine_ns[engine] = max(ns, before)
            yield engine, max(ns - before, 0)
        for engine, ticks in fdinfo.ticks.items():
            if engine in fdinfo.engine_ns:
                continue
            clock = self.clocks.setdefault((seen.device, engine), Clock())
            clock.read(ticks.clock, seen)
            busy = ticks.busy - client.busy.get(engine, 0)
            if clock.cycles and busy >= 0:
                client.busy[engine] = ticks.busy
                yield engine, busy * clock.ns // clock.cycles

    def _use(self, cgroup_id: int, device: str, path: str, now_ns: int) -> Use:
        """Its totals; where there is no room for them, those of nobody."""
        key = (cgroup_id, device)
        if key not in self.uses and cgroup_id and len(self.uses) >= MAX_USES:
            return self._use(0, device, "", now_ns)
        return self.uses.setdefault(key, Use(path, now_ns))

    def _end(self, key: tuple[str, int], now_ns: int) -> None:
        client = self.clients.pop(key)
        use = self.uses.get((client.cgroup_id, key[0]))
        (use or self._use(0, key[0], "", now_ns)).ended += 1

    # ---- ends of series ----

    def fold(self, standings: Mapping[int, Standing], now: float, retention_s: float) -> None:
        """What the ledger does with counts of cgroups that are gone, by the same rules, so that the series of calls and
        of time end together. `standings` has names; whether a cgroup is gone stands in its use."""
        keys = [key for key in self.uses if key[0]]
        devices = sorted({device for _, device in keys})
        ours = {
            cgroup_id: Standing(known.owner, known.final, self.uses[cgroup_id, device].dead_since)
            for cgroup_id, device in keys
            for known in (standings.get(cgroup_id, UNASKED),)
        }
        first = len(devices)
        cells = tuple(
            Cell(first + n, cgroup_id, devices.index(device), self.uses[cgroup_id, device].first_ns, ZERO)
            for n, (cgroup_id, device) in enumerate(keys)
        )
        sample = KernelSample(0, cells, {}, {}, {}, {}, len(cells), MAX_USES)
        for merge in plan_merges(sample, ours, now, retention_s).merges:
            source = self.uses.pop(keys[merge.source - first])
            target = (0, devices[merge.target]) if merge.target < first else keys[merge.target - first]
            self.uses.setdefault(target, Use("", source.first_ns)).take(source)

    def forget_memory(self) -> None:
        """Nobody knows what the clients have now."""
        for client in self.clients.values():
            client.memory = {}

    def shown(self) -> Iterator[ClientUse]:
        """The totals, with the memory of the clients there are."""
        memory: dict[tuple[int, str], dict[str, int]] = {}
        for (device, _), client in self.clients.items():
            regions = memory.setdefault((client.cgroup_id, device), {})
            for region, size in client.memory.items():
                regions[region] = regions.get(region, 0) + size
        for (cgroup_id, device), use in self.uses.items():
            regions = possible(memory.get((cgroup_id, device), {}))
            yield ClientUse(cgroup_id, use.path, device, use.first_ns, use.engine_ns, regions, use.ended)
