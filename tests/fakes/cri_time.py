# SPDX-License-Identifier: Apache-2.0
"""Time that a test of container runtimes moves itself, and time that it measures."""

from __future__ import annotations

import time
from collections.abc import Callable

PATIENCE_S = 10.0


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the condition was never met"


def seconds_of(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started
