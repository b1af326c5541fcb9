# SPDX-License-Identifier: Apache-2.0
"""The kubelet of this node, if it ever had one: what asks it is imported when its socket is there.

Owns that from then on. A node without kubelet costs a look for the socket. For one thread; `known` for all.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kubenpu.model.errors import SourceError
from kubenpu.model.view import View

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocations
    from kubenpu.service.allocations import Kubelet, Runtime


KUBELET = "kubelet"
"""The source."""
Note = Callable[[str, str, float, bool], None]


class MaybeKubelet:
    """`socket` "": it is not asked. `clock`: seconds of CLOCK_BOOTTIME."""

    def __init__(self, socket: str, runtimes: Callable[[], Sequence[Runtime]], clock: Callable[[], float]) -> None:
        self._socket, self._runtimes, self._clock = socket, runtimes, clock
        self._kubelet: Kubelet | None = None

    @property
    def known(self) -> Allocations | None:
        """What it has given to whom; None: nobody tells."""
        kubelet = self._kubelet
        return kubelet.known if kubelet is not None else None

    def follow(self, socket: str) -> bool:
        """Whether this is another socket, which is asked from now on."""
        if socket == self._socket:
            return False
        self.close()
        self._socket, self._kubelet = socket, None
        return True

    def ask(self, view: Callable[[], View], note: Note) -> None:
        """Tells `note` whether it answered and how long that took, unless there is none."""
        if self._kubelet is None:
            if not self._socket or not os.path.exists(self._socket):  # noqa: PTH110 - Path.exists() may raise
                return
            from kubenpu.service.allocations import Kubelet  # noqa: PLC0415 - of use on nodes of a cluster

            self._kubelet = Kubelet(Path(self._socket), self._runtimes, self._clock)
        begin, answered = time.monotonic(), True
        try:
            reason = self._kubelet.ask(view)
        except SourceError as e:
            reason, answered = str(e), False
        note(KUBELET, reason, time.monotonic() - begin, answered)

    def close(self) -> None:
        if self._kubelet is not None:
            self._kubelet.close()
