# SPDX-License-Identifier: Apache-2.0
"""How each source of the node is: up or down, why, and how long it took.

Owns the status of every source that was ever asked. What is wrong is logged when it begins and when it ends. Not for
two threads at once: the node has the lock.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager

from kubenpu.model.errors import KubeNpuError
from kubenpu.model.view import SourceStatus

log = logging.getLogger(__name__)


class Sources:
    """Status by name of the source."""

    def __init__(self) -> None:
        self._all: dict[str, SourceStatus] = {}

    @contextmanager
    def timed(self, name: str) -> Iterator[None]:
        """Times what is done with a source and keeps its outcome; errors of ours are kept and logged, not raised."""
        begin = time.monotonic()
        reason = ""
        try:
            yield
        except KubeNpuError as e:
            reason = str(e)
        self.note(name, reason, time.monotonic() - begin)

    def note(self, name: str, reason: str, seconds: float | None, answered: bool = False) -> None:
        """Reason "" means that it is up, as does `answered`: the reason is then what is wrong with its answer.
        Seconds None: not asked now, took what it took before."""
        before = self._all.get(name)
        if reason and (before is None or before.reason != reason):
            log.warning("%s: %s", name, reason)
        if not reason and before is not None and not before.up:
            log.info("%s: works again", name)
        if seconds is None:
            seconds = 0.0 if before is None else before.duration_seconds
        self._all[name] = SourceStatus(name, answered or not reason, seconds, reason)

    def forget(self, prefix: str) -> None:
        """Those that are asked no more."""
        self._all = {name: status for name, status in self._all.items() if not name.startswith(prefix)}

    def __getitem__(self, name: str) -> SourceStatus:
        return self._all[name]

    def all(self) -> tuple[SourceStatus, ...]:
        return tuple(self._all[name] for name in sorted(self._all))
