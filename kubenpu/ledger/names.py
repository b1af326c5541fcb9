# SPDX-License-Identifier: Apache-2.0
"""Keeps the names of counted cgroups over a restart of the daemon: one JSON file below /run/kubenpu.

The counts live in the kernel and need no file; the names of removed containers live nowhere else, their runtime has
forgotten them. Data comes from `Ledger.names()`. The file is replaced as a whole, holds nothing that metrics do not
show, and is only valid for the boot it was written in, as cgroup ids are. Refuses a file it does not fully understand.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from kubenpu.ledger.standing import Standing
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import HostKind, Owner, OwnerKind

NAMES_NAME = "names.json"
FORMAT = 2
_TEXTS = ("namespace", "pod", "container", "pod_uid", "container_id", "unit", "image")


def write_names(path: Path, boot_id: str, names: Mapping[int, Standing]) -> None:
    """Replace the file; a reader sees the old one or the new one."""
    rows = [[cgroup_id, standing.dead_since, *_owner_row(standing.owner)] for cgroup_id, standing in names.items()]
    fresh = path.with_name(path.name + ".new")
    try:
        fresh.write_text(json.dumps({"format": FORMAT, "boot_id": boot_id, "names": rows}), encoding="ascii")
        fresh.replace(path)
    except OSError as error:
        remedy = "Names of dead pods do not survive a restart of the daemon until it can be written"
        raise SourceError(f"cannot write {path}: {error.strerror}", remedy) from error


def read_names(path: Path, boot_id: str) -> dict[int, Standing]:
    """The names of this boot; none if there is no file or it is of another boot."""
    try:
        document = json.loads(path.read_text(encoding="ascii"))
        if document["format"] != FORMAT or document["boot_id"] != boot_id:
            return {}
        return dict(_standing(row) for row in document["names"])
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
        raise SourceError(f"cannot use {path}: {type(error).__name__}: {error}", "It is written anew") from error


def _owner_row(owner: Owner) -> list[str]:
    host_kind = owner.host_kind.value if owner.host_kind else ""
    return [owner.kind.value, host_kind, *(getattr(owner, name) for name in _TEXTS)]


def _standing(row: list[object]) -> tuple[int, Standing]:
    cgroup_id, dead_since, kind, host_kind, *texts = row
    if not isinstance(cgroup_id, int) or not isinstance(dead_since, float | int | None):
        raise TypeError("cgroup id or time is not a number")
    if len(texts) != len(_TEXTS) or not all(isinstance(text, str) for text in texts):
        raise TypeError("an owner is not made of strings")
    named = {name: str(text) for name, text in zip(_TEXTS, texts, strict=True)}
    owner = Owner(OwnerKind(kind), host_kind=HostKind(host_kind) if host_kind else None, **named)
    return cgroup_id, Standing(owner, final=True, dead_since=dead_since)
