# SPDX-License-Identifier: Apache-2.0
"""Device time and memory on their way from kubenpu-clients to kubenpud: one file below /run/kubenpu.

A line for what is said of all, then a line for each cgroup and device, then one of which kubenpud reads nothing: what
kubenpu-clients must know to go on after a restart. The file is replaced as a whole, so totals and the values they were
made from are always of one look; it is of the boot that it names. Refuses a file it does not fully understand.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TextIO, TypeVar

from kubenpu.model.clients import COUNT_LIMIT, ClientSample, ClientUse
from kubenpu.model.errors import SourceError

FORMAT = 3
NAME = "clients.json"
HEAD = ("taken_ns", "due_ns", "generation")
T = TypeVar("T")


def read_clients(path: Path, boot_id: str) -> ClientSample | None:
    """What all clients used; None when there is no file, or it is of another boot."""
    return read_with(path, boot_id, lambda sample, file: sample)


class LatestClients:
    """The same for whoever asks often: the file is read when it is another one than the last time."""

    def __init__(self, path: Path, boot_id: str) -> None:
        self._path, self._boot_id = path, boot_id
        self._seen = (0, 0)
        self._sample: ClientSample | None = None

    def read(self) -> ClientSample | None:
        try:
            status = self._path.stat()
        except OSError:
            return None
        if self._seen != (status.st_ino, status.st_mtime_ns):
            self._sample = read_clients(self._path, self._boot_id)
            self._seen = (status.st_ino, status.st_mtime_ns)
        return self._sample


def read_with(path: Path, boot_id: str, finish: Callable[[ClientSample, TextIO], T]) -> T | None:
    """What `finish` makes of it and of the rest of the file."""
    try:
        with path.open(encoding="ascii") as file:
            head = json.loads(file.readline())
            if head["format"] != FORMAT or head["boot_id"] != boot_id:
                return None
            uses = tuple(_use(json.loads(file.readline())) for _ in range(number(head["uses"])))
            taken_ns, due_ns, generation = (number(head[name]) for name in HEAD)
            return finish(ClientSample(taken_ns, due_ns, generation, uses, str(head["trouble"])), file)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}") from error
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise SourceError(f"cannot use {path}: {type(error).__name__}: {error}", "Restart kubenpu-clients") from error


def _use(line: list[object]) -> ClientUse:
    cgroup_id, path, device, first_ns, engine_ns, memory, ended, earlier_ns = line
    return ClientUse(
        number(cgroup_id),
        str(path),
        str(device),
        number(first_ns),
        numbers(engine_ns),
        None if memory is None else numbers(memory),
        number(ended),
        number(earlier_ns),
    )


def numbers(found: object) -> dict[str, int]:
    """Raises TypeError."""
    if not isinstance(found, dict):
        raise TypeError("not a table of numbers")
    return {str(name): number(value) for name, value in found.items()}


def number(found: object, limit: int = COUNT_LIMIT) -> int:
    """Raises TypeError."""
    if not isinstance(found, int) or not 0 <= found < limit:
        raise TypeError("not a count")
    return found
