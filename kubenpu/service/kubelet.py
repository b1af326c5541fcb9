# SPDX-License-Identifier: Apache-2.0
"""The kubelet of this node, if it ever had one: what asks it is imported when its socket is there.

Owns that from then on, and looks whether there is a newer one. A node without kubelet costs a look for the socket. For
one thread; `known` for all.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from kubenpu.identity.kubelet_socket import find_kubelet
from kubenpu.model.errors import SourceError
from kubenpu.model.view import View

if TYPE_CHECKING:
    from kubenpu.model.allocation import Allocations
    from kubenpu.service.allocations import Kubelet, Runtime


KUBELET = "kubelet"
"""The source."""
Note = Callable[[str, str, float, bool], None]


class MaybeKubelet:
    """`setting` as find_kubelet() has it. `clock`: seconds of CLOCK_BOOTTIME."""

    def __init__(self, setting: str, runtimes: Callable[[], Sequence[Runtime]], clock: Callable[[], float]) -> None:
        self._setting, self._runtimes, self._clock = setting, runtimes, clock
        self._socket: Path | None = None
        self._kubelet: Kubelet | None = None

    @property
    def known(self) -> Allocations | None:
        """What it has given to whom; None: nobody tells."""
        kubelet = self._kubelet
        return kubelet.known if kubelet is not None else None

    def follow(self, setting: str) -> bool:
        """Whether this is another setting, which counts from now on."""
        if setting == self._setting:
            return False
        self.close()
        self._setting, self._socket, self._kubelet = setting, None, None
        return True

    def ask(self, view: Callable[[], View], note: Note) -> None:
        """Tells `note` whether it answered and how long that took, unless there never was one."""
        socket = find_kubelet(self._setting)
        if socket is not None and socket != self._socket:
            from kubenpu.service.allocations import Kubelet  # noqa: PLC0415 - of use on nodes of a cluster

            self.close()
            self._socket, self._kubelet = socket, Kubelet(socket, self._runtimes, self._clock)
        if self._kubelet is None:
            return
        begin, answered = time.monotonic(), True
        try:
            reason = self._kubelet.ask(view)
        except SourceError as e:
            reason, answered = str(e), False
        note(KUBELET, reason, time.monotonic() - begin, answered)

    def close(self) -> None:
        if self._kubelet is not None:
            self._kubelet.close()
