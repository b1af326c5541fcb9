# SPDX-License-Identifier: Apache-2.0
"""Adds device time up: from what clients say they used since they were opened to totals per cgroup, device and engine.

Fed one look after the other by kubenpu-clients, which owns it; does no I/O. Totals never go down, and what a device's
cgroups have adds up to what its clients were seen to use. Refuses to guess: what a client did after it was last looked
at is in no number, only that it ended is; meters.py says which numbers are believed.

A client belongs to the cgroup of the process that holds it; of several it stays with the one it has, else the oldest
process. What it used before it is seen for the first time is the first one's. It may be in nobody's hands for a while,
on its way through a socket, and is remembered for that long: else it would count twice. Its id says which client it is;
its open file only while a sleeping device is not asked: a process may swap descriptors between the two readings. A file
that is closed leaves its address to the next: what the kernel calls the client tells them apart, else the cgroup.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from kubenpu.ledger.merges import plan_merges
from kubenpu.ledger.meters import Clock, Meter
from kubenpu.ledger.standing import UNASKED, Standing
from kubenpu.model.clients import ClientUse, possible
from kubenpu.model.fdinfo import Fdinfo
from kubenpu.model.sample import ZERO, Cell, KernelSample

MAX_USES = 4096
MAX_PATH_BYTES = 1024
LOOKS_REMEMBERED = 8
MAX_REMEMBERED = 8192

FileKey = tuple[str, int]
"""Device and open file."""
ClientKey = tuple[str, int]
"""Device and client id."""


@dataclass(frozen=True, slots=True)
class Seen:
    """A client as one look found it. `cgroups`: of the tasks that hold it, the oldest process first; () when they were
    gone before they could be asked. `fdinfo` None: it was not read, its device sleeps. `begin_ns` and `end_ns` of
    CLOCK_BOOTTIME bracket the reading; `start_ns`: since when there is a process that holds it; `slept_ms`: how long
    the device has slept in its life, `suspended_ns`: the machine. `kernel_id`: what the kernel calls it, 0: not known,
    which need not be what the driver calls it."""

    device: str
    file: int
    cgroups: tuple[int, ...]
    fdinfo: Fdinfo | None
    begin_ns: int = 0
    end_ns: int = 0
    start_ns: int = 0
    slept_ms: int = 0
    suspended_ns: int = 0
    kernel_id: int = 0


class Since(NamedTuple):
    """From when on a file may have been used, and from when on it would have been seen."""

    opened_ns: int
    booked_ns: int


class Unpaid(NamedTuple):
    """Cycles of a client as it was read last, while nobody knows how long one takes."""

    busy: int
    now_ns: int
    engines: int


@dataclass(slots=True)
class Client:
    """`since`: it was read last, or opened. `meters` by engine. `missed`: looks without it."""

    file: int
    cgroup_id: int
    since: Since
    meters: dict[str, Meter] = field(default_factory=dict)
    unpaid: dict[str, Unpaid] = field(default_factory=dict)
    memory: dict[str, int] = field(default_factory=dict)
    missed: int = 0
    kernel_id: int = 0

    def is_another(self, seen: Seen) -> bool:
        """Whether what has the address of its file now surely is."""
        return 0 != self.kernel_id != seen.kernel_id != 0

    def is_the_same(self, seen: Seen) -> bool:
        """As far as is known: another cgroup may have been handed it, or have got its address."""
        return 0 != self.kernel_id == seen.kernel_id or self.cgroup_id in seen.cgroups

    def has_ended(self, seen: Seen) -> bool:
        """Whether its id is another's by now, because the driver was loaded again: an open file that is handed on, to a
        process that began after it was read, keeps its address."""
        return self.file != seen.file and seen.start_ns > self.since.booked_ns

    def meter(self, engine: str) -> Meter:
        return self.meters.setdefault(engine, Meter(*self.since))


@dataclass(slots=True)
class Use:
    """Totals of one cgroup on one device. `dead_since`: seconds of CLOCK_BOOTTIME, None while the cgroup exists.
    `earlier_ns`: of the time of all engines, that of which nobody knows when it was used."""

    path: str
    first_ns: int
    dead_since: float | None = None
    engine_ns: dict[str, int] = field(default_factory=dict)
    ended: int = 0
    earlier_ns: int = 0

    def add(self, engine: str, ns: int, recent_ns: int) -> None:
        """Zeros too: the driver tells of this engine."""
        self.engine_ns[engine] = self.engine_ns.get(engine, 0) + ns
        self.earlier_ns += ns - recent_ns

    def take(self, other: Use) -> None:
        for engine, ns in other.engine_ns.items():
            self.add(engine, ns, ns)
        self.earlier_ns += other.earlier_ns
        self.ended += other.ended
        self.first_ns = min(self.first_ns, other.first_ns)


@dataclass(slots=True)
class Accounts:
    """All that outlives a look. Clients by (device, client id), clocks by (device, engine), uses by (cgroup, device);
    cgroup 0 has what belongs to no series any more, or found no room for one. `unread`: files that were never read.
    `looked_ns`: when the last look began; `crowded`: cgroups and devices of which it left clients out."""

    clients: dict[ClientKey, Client] = field(default_factory=dict)
    clocks: dict[tuple[str, str], Clock] = field(default_factory=dict)
    uses: dict[tuple[int, str], Use] = field(default_factory=dict)
    unread: dict[FileKey, Since] = field(default_factory=dict)
    looked_ns: int = 0
    crowded: frozenset[tuple[int, str]] = frozenset()

    def look(
        self, seen: Iterable[Seen], paths: Mapping[int, str], now_ns: int, crowded: Iterable[tuple[int, str]] = ()
    ) -> None:
        """Takes one look at all clients in, but for some of those that are `crowded`. `paths` has every cgroup of
        theirs; `now_ns`: when it began."""
        by_file, here, unread = self.by_file(), set(), {}
        for each in seen:
            file = (each.device, each.file)
            since = self.unread.get(file) or self._since(each)
            key = (each.device, each.fdinfo.client_id) if each.fdinfo else self._in_place(by_file.get(file), each)
            if key is not None:
                here.add(key)
                self._see(key, each, since, paths, now_ns)
            client = self.clients.get(key) if key else None
            if client is None or not client.is_the_same(each):
                unread[file] = since
        self.unread, self.looked_ns, self.crowded = unread, now_ns, frozenset(crowded)
        for key, client in self.clients.items():
            client.missed = 0 if key in here else client.missed + 1
            if client.missed:
                client.memory = {}
            self._pay(key, client, now_ns)
        self._forget_old(now_ns)

    def by_file(self) -> dict[FileKey, ClientKey]:
        """A new client may have the place of one that has just ended."""
        return {(key[0], client.file): key for key, client in self.clients.items()}

    def running_ahead(self) -> int:
        """How many clients say that they used more than can be."""
        living = (client for client in self.clients.values() if not client.missed)
        return sum(any(meter.runs_ahead for meter in client.meters.values()) for client in living)

    def _in_place(self, key: ClientKey | None, seen: Seen) -> ClientKey | None:
        """Which client it is that was not read, `key` being the one that had the file. Where it may be another, nobody
        knows what that one has now; yet it has not ended: it would count twice when it is read again."""
        client = self.clients[key] if key else None
        if client is None or client.is_another(seen):
            return None
        if not client.is_the_same(seen):
            client.memory = {}
        return key

    def _since(self, seen: Seen) -> Since:
        """Of a file that was not there in the last look. Nobody knows for how long if that was the first, or left some
        of the cgroup out."""
        left_out = any((cgroup_id, seen.device) in self.crowded for cgroup_id in seen.cgroups)
        looked_ns = 0 if left_out else self.looked_ns
        opened = max(seen.start_ns, looked_ns)
        return Since(opened, opened if looked_ns else seen.end_ns)

    def _see(self, key: ClientKey, seen: Seen, since: Since, paths: Mapping[int, str], now_ns: int) -> None:
        if seen.fdinfo is None or not seen.cgroups:
            return
        before = self.clients.get(key)
        if before is not None and before.has_ended(seen):
            self._pay(key, before, now_ns)
            self._end(key, now_ns)
        client = self.clients.setdefault(key, Client(seen.file, seen.cgroups[0], since))
        client.file, client.kernel_id = seen.file, seen.kernel_id
        if client.cgroup_id not in seen.cgroups:
            self._pay(key, client, now_ns)
            client.cgroup_id = seen.cgroups[0]
        use = self._use(client.cgroup_id, seen.device, paths.get(client.cgroup_id, ""), now_ns)
        client.memory = dict(seen.fdinfo.memory)
        self._read(client, use, seen, seen.fdinfo)
        client.since = Since(seen.end_ns, seen.end_ns)

    def _read(self, client: Client, use: Use, seen: Seen, fdinfo: Fdinfo) -> None:
        for engine, ns in fdinfo.engine_ns.items():
            engines = fdinfo.engines.get(engine, 1)
            use.add(engine, *client.meter(engine).read(ns, seen.end_ns, engines))
        for engine, ticks in fdinfo.ticks.items():
            if engine not in fdinfo.engine_ns:
                clock = self.clocks.setdefault((seen.device, engine), Clock())
                clock.read(ticks.clock, seen.begin_ns, seen.end_ns, seen.slept_ms, seen.suspended_ns)
                client.meter(engine)
                client.unpaid[engine] = Unpaid(ticks.busy, seen.end_ns, fdinfo.engines.get(engine, 1))

    def _pay(self, key: ClientKey, client: Client, now_ns: int) -> None:
        """Turns cycles into time where it is known by now how long one takes; for who has ended meanwhile, too."""
        for engine, unpaid in list(client.unpaid.items()):
            clock = self.clocks.get((key[0], engine))
            if clock is not None and clock.speed is not None:
                del client.unpaid[engine]
                self._use_of(key, client, now_ns).add(engine, *client.meter(engine).read(*unpaid, clock.speed))

    def _use(self, cgroup_id: int, device: str, path: str, now_ns: int) -> Use:
        """Its totals; where there is no room for them, those of nobody."""
        key = (cgroup_id, device)
        full = len(self.uses) >= MAX_USES or len(os.fsencode(path)) > MAX_PATH_BYTES
        if key not in self.uses and cgroup_id and full:
            return self._use(0, device, "", now_ns)
        return self.uses.setdefault(key, Use(path, now_ns))

    def _use_of(self, key: ClientKey, client: Client, now_ns: int) -> Use:
        """That of a client that was read before; its series may have ended."""
        return self.uses.get((client.cgroup_id, key[0])) or self._use(0, key[0], "", now_ns)

    def _forget_old(self, now_ns: int) -> None:
        """Clients that have ended: those that were missed for long, and the oldest beyond a bound."""
        missed = sorted((key for key, client in self.clients.items() if client.missed), key=self._missed, reverse=True)
        for place, key in enumerate(missed):
            if self._missed(key) > LOOKS_REMEMBERED or len(missed) - place > MAX_REMEMBERED:
                self._end(key, now_ns)

    def _end(self, key: ClientKey, now_ns: int) -> None:
        client = self.clients.pop(key)
        self._use_of(key, client, now_ns).ended += 1

    def _missed(self, key: ClientKey) -> int:
        return self.clients[key].missed

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
        """The totals, with the memory of the clients there are, where all were looked at."""
        memory: dict[tuple[int, str], dict[str, int]] = {}
        for (device, _), client in self.clients.items():
            regions = memory.setdefault((client.cgroup_id, device), {})
            for region, size in client.memory.items():
                regions[region] = regions.get(region, 0) + size
        for key, use in self.uses.items():
            cgroup_id, device = key
            has = None if key in self.crowded else possible(memory.get(key, {}))
            yield ClientUse(cgroup_id, use.path, device, use.first_ns, use.engine_ns, has, use.ended, use.earlier_ns)
