# SPDX-License-Identifier: Apache-2.0
"""The history beside the daemon: takes a picture of the node once a minute, stores it, and answers what was used when.

Owns the recorder, which one thread at a time uses. A history that cannot be written is a source that is down and
stops nothing: it is tried again soon, and what is not stored today is part of what is stored next. SQLite is imported
when there is a history.
"""

from __future__ import annotations

import math
import time
from typing import TYPE_CHECKING

from kubenpu.config.settings import Settings
from kubenpu.model.errors import KubeNpuError, SourceError
from kubenpu.model.usage import UsageRow
from kubenpu.service.node import Node

if TYPE_CHECKING:
    from kubenpu.history.recorder import Recorder

SOURCE = "history"
QUERY_SECONDS = 10.0
RETRY_SECONDS = 10.0
"""After what could not be written. One failure does not make an interval of which nobody knows who was active."""


class History:
    """Every method but usage() is for one thread at a time."""

    def __init__(self, node: Node, settings: Settings) -> None:
        self._node = node
        self._path = settings.history_file if settings.history_enabled else None
        self._recorder: Recorder | None = None
        self._begun = False
        self._doubted = False
        self.apply(settings)

    def apply(self, settings: Settings) -> None:
        """Settings that need no restart."""
        if self._path is None:
            return
        from kubenpu.history.recorder import Recorder  # noqa: PLC0415 - with SQLite
        from kubenpu.history.upkeep import Bounds  # noqa: PLC0415

        bounds = Bounds(settings.history_retention_days, settings.history_max_mib)
        if self._recorder is None:
            self._recorder = Recorder(self._path, bounds)
        self._recorder.bounds = bounds

    def step(self) -> float:
        """Stores what happened since the last time; returns when to do that again, in seconds."""
        if self._recorder is None:
            return math.inf
        from kubenpu.history.growth import STEP_S  # noqa: PLC0415

        self._begun = True
        if self._doubted:
            self._doubted = False
            self._recorder.close()  # whoever opens it looks through all of it
        return STEP_S if self._record(self._recorder, STEP_S / 2) else RETRY_SECONDS

    def close(self) -> None:
        """What happened until now is stored: a reboot may be next, which the kernel's counts do not survive."""
        if self._recorder is not None and self._begun:
            self._record(self._recorder, 0.0)
            self._recorder.close()

    def usage(self, by: str, since: float, until: float, page: range) -> tuple[list[UsageRow], int]:
        """For another thread, one at a time: a page, and how many groups there are on all.

        SourceError when there is no answer.
        """
        if self._path is None:
            raise SourceError("there is no history: history.enabled is false", "Set it and restart kubenpud")
        from kubenpu.history.report import read_page  # noqa: PLC0415
        from kubenpu.history.schema import CorruptError, cut_log  # noqa: PLC0415

        cut_log(self._path)
        try:
            return read_page(self._path, by, since, until, deadline_s=QUERY_SECONDS, page=page)
        except CorruptError:
            self._doubted = True
            raise

    def _record(self, recorder: Recorder, least_s: float) -> bool:
        """False when it is to be tried again. A file that was set aside is not: there is another one."""
        from kubenpu.history.schema import CorruptError  # noqa: PLC0415
        from kubenpu.history.snapshot import read_snapshot  # noqa: PLC0415

        begin, reason, done = time.monotonic(), "", True
        snapshot = read_snapshot(self._node.view(), int(time.time() * 1000), self._node.visibility)
        if snapshot is not None:
            try:
                recorder.record(snapshot, least_s)
            except KubeNpuError as e:
                reason, done = str(e), isinstance(e, CorruptError)
        self._node.note_source(SOURCE, reason, time.monotonic() - begin)
        return done
