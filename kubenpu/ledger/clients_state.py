# SPDX-License-Identifier: Apache-2.0
"""The writing side of clients_file.py: totals, and what kubenpu-clients must know to go on after a restart, which are
clients with the values that were accounted for, clocks, when cgroups went. Refuses what is not of its own making.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import astuple
from pathlib import Path
from typing import Any

from kubenpu.ledger.clients import Accounts, Client, Since, Unpaid, Use
from kubenpu.ledger.clients_file import FORMAT, HEAD, number, numbers, read_with
from kubenpu.ledger.meters import Clock, Meter, Speed
from kubenpu.model.clients import COUNT_LIMIT, ClientSample, ClientUse
from kubenpu.model.errors import SourceError

NAME_LIMIT = 1 << 64
"""Of what the kernel tells files and clients apart by: the address of a file is in the upper half."""


def write_clients(path: Path, boot_id: str, sample: ClientSample, rest: object) -> None:
    """For root's eyes: it tells where in the kernel's memory files are."""
    head = {"format": FORMAT, "boot_id": boot_id, "uses": len(sample.uses), "trouble": sample.trouble}
    head |= {name: getattr(sample, name) for name in HEAD}
    fresh = path.with_name(path.name + ".new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - of an fd
            file.writelines(f"{json.dumps(line)}\n" for line in (head, *sample.uses, rest))
        fresh.replace(path)
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror}") from error


def read_clients_and_rest(path: Path, boot_id: str) -> tuple[ClientSample, object] | None:
    """The same with what was written beside it."""
    return read_with(path, boot_id, lambda sample, file: (sample, json.loads(file.readline())))


def dump_rest(accounts: Accounts) -> dict[str, object]:
    """All but the totals. `dead_since` in their order."""
    return {
        "clients": [[*key, *_dump_client(client)] for key, client in accounts.clients.items()],
        "clocks": [[*key, *astuple(clock)] for key, clock in accounts.clocks.items()],
        "unread": [[*file, *since] for file, since in accounts.unread.items()],
        "looked_ns": accounts.looked_ns,
        "crowded": sorted(accounts.crowded),
        "dead_since": [use.dead_since for use in accounts.uses.values()],
    }


def _dump_client(client: Client) -> Iterator[object]:
    meters = {
        engine: (each.grew_ns, each.booked_ns, each.value, each.odd, each.odd_ns, each.times)
        for engine, each in client.meters.items()
    }
    yield from (client.file, client.cgroup_id, client.since, meters, client.unpaid, client.memory)
    yield from (client.missed, client.kernel_id)


def restore(uses: Iterable[ClientUse], rest: object) -> Accounts:
    """Raises TypeError, ValueError or KeyError."""
    accounts = Accounts()
    if not isinstance(rest, dict):
        raise TypeError("not a table")
    for use, dead_since in zip(uses, rest["dead_since"], strict=True):
        totals = Use(use.path, use.first_ns, _time(dead_since), dict(use.engine_ns), use.ended, use.earlier_ns)
        accounts.uses[use.cgroup_id, use.device] = totals
    for device, client_id, *values in rest["clients"]:
        accounts.clients[str(device), number(client_id, NAME_LIMIT)] = _client(values)
    for device, engine, *values in rest["clocks"]:
        accounts.clocks[str(device), str(engine)] = _clock(values)
    for device, file, *since in rest["unread"]:
        accounts.unread[str(device), number(file, NAME_LIMIT)] = Since(*map(number, since))
    accounts.looked_ns = number(rest["looked_ns"])
    accounts.crowded = frozenset((number(cgroup_id), str(device)) for cgroup_id, device in rest["crowded"])
    return accounts


def _client(values: list[Any]) -> Client:
    file, cgroup_id, since, meters, unpaid, memory, missed, kernel_id = values
    return Client(
        number(file, NAME_LIMIT),
        number(cgroup_id),
        Since(*map(number, since)),
        {engine: Meter(*map(number, each)) for engine, each in dict(meters).items()},
        {engine: Unpaid(*map(number, each)) for engine, each in dict(unpaid).items()},
        numbers(memory),
        number(missed),
        number(kernel_id, NAME_LIMIT),
    )


def _clock(values: list[Any]) -> Clock:
    last, last_ns, slept_ms, suspended_ns, spans, speed = values
    return Clock(
        number(last),
        number(last_ns),
        number(slept_ms),
        number(suspended_ns),
        [_speed(each) for each in spans],
        None if speed is None else _speed(speed),
    )


def _speed(found: list[object]) -> Speed:
    speed = Speed(*map(number, found))
    if not all(speed):
        raise ValueError("no speed")
    return speed


def _time(found: object) -> float | None:
    if found is not None and not (isinstance(found, int | float) and 0 <= found < COUNT_LIMIT):
        raise TypeError("not a time")
    return found
