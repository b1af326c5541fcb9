# SPDX-License-Identifier: Apache-2.0
"""Labels and annotations of pods that the operator wants usage to be summed up by.

Owns what the runtimes said, by UID of the pod, as long as the pod is of interest; the runtime keeps them unchanged as
long as its sandbox lives. Asks for nothing when no key is wanted, and about a pod until a runtime answers. Blocking.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Protocol

from kubenpu.identity.cri import Clock
from kubenpu.model.errors import SourceError


class Runtime(Protocol):
    """kubenpu.identity.cri.CriClient is one."""

    def pod_labels(self, pod_uid: str, keys: Sequence[str], timeout_s: float | None) -> dict[str, str] | None: ...


class PodLabels:
    """`keys` may be changed by follow(); then all pods are asked about again."""

    def __init__(
        self, runtimes: Callable[[], Sequence[Runtime]], keys: Sequence[str], clock: Clock = time.monotonic
    ) -> None:
        self._runtimes = runtimes
        self._clock = clock
        self._keys = tuple(keys)
        self._known: dict[str, Mapping[str, str]] = {}

    @property
    def known(self) -> Mapping[str, Mapping[str, str]]:
        """By UID of the pod; replaced, never changed."""
        return self._known

    def follow(self, keys: Sequence[str]) -> None:
        if tuple(keys) != self._keys:
            self._keys, self._known = tuple(keys), {}

    def look_up(self, pod_uids: Collection[str], deadline_s: float) -> None:
        """Asks about those not known yet, forgets all others."""
        if not self._keys:
            return
        end = self._clock() + deadline_s
        known = {uid: labels for uid, labels in self._known.items() if uid in pod_uids}
        for uid in pod_uids - known.keys():
            left_s = end - self._clock()
            if left_s <= 0:
                break
            labels = self._ask(uid, left_s)
            if labels is not None:
                known[uid] = labels
        self._known = known

    def _ask(self, uid: str, left_s: float) -> Mapping[str, str] | None:
        """None: ask again. A pod that every runtime denies is gone, and its labels with it."""
        runtimes = self._runtimes()
        silent = not runtimes
        for runtime in runtimes:
            try:
                labels = runtime.pod_labels(uid, self._keys, left_s)
            except SourceError:
                silent = True
                continue
            if labels is not None:
                return labels
        return None if silent else {}
