# SPDX-License-Identifier: Apache-2.0
"""The writing side of clients_file.py: totals, and what kubenpu-clients must know to go on after a restart, which are
clients with the values that were accounted for, clocks, when cgroups went. Refuses what is not of its own making.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable
from pathlib import Path

from kubenpu.ledger.clients import Accounts, Client, Clock, Use
from kubenpu.ledger.clients_file import FORMAT, HEAD, read_with
from kubenpu.model.clients import ClientSample, ClientUse
from kubenpu.model.errors import SourceError


def write_clients(path: Path, boot_id: str, sample: ClientSample, rest: object) -> None:
    """For root's eyes: it tells where in the kernel's memory files are."""
    head = {"format": FORMAT, "boot_id": boot_id, "uses": len(sample.uses), "trouble": sample.trouble}
    head |= {name: getattr(sample, name) for name in HEAD}
    uses = ([u.cgroup_id, u.path, u.device, u.first_ns, u.engine_ns, u.memory, u.ended] for u in sample.uses)
    fresh = path.with_name(path.name + ".new")
    try:
        fd = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with open(fd, "w", encoding="ascii") as file:  # noqa: PTH123 - of an fd
            file.writelines(f"{json.dumps(line)}\n" for line in (head, *uses, rest))
        fresh.replace(path)
    except OSError as error:
        raise SourceError(f"cannot write {path}: {error.strerror}") from error


def read_clients_and_rest(path: Path, boot_id: str) -> tuple[ClientSample, object] | None:
    """The same with what was written beside it."""
    return read_with(path, boot_id, lambda sample, file: (sample, json.loads(file.readline())))


def dump_rest(accounts: Accounts) -> dict[str, object]:
    """All but the totals. `dead_since` in their order."""
    return {
        "clients": [
            [*key, c.file, c.cgroup_id, c.engine_ns, c.busy, c.memory, c.missed] for key, c in accounts.clients.items()
        ],
        "clocks": [[*key, c.cycles, c.ns, c.last, c.last_ns, c.slept_ms] for key, c in accounts.clocks.items()],
        "dead_since": [use.dead_since for use in accounts.uses.values()],
    }


def restore(uses: Iterable[ClientUse], rest: object) -> Accounts:
    """Raises TypeError, ValueError or KeyError."""
    accounts = Accounts()
    if not isinstance(rest, dict):
        raise TypeError("not a table")
    for use, dead_since in zip(uses, rest["dead_since"], strict=True):
        totals = Use(use.path, use.first_ns, dead_since, dict(use.engine_ns), use.ended)
        accounts.uses[use.cgroup_id, use.device] = totals
    for device, client_id, *values in rest["clients"]:
        accounts.clients[str(device), int(client_id)] = Client(*values)
    for device, engine, *values in rest["clocks"]:
        accounts.clocks[str(device), str(engine)] = Clock(*values)
    return accounts
