# SPDX-License-Identifier: Apache-2.0
"""Waiting for a condition with a deadline: the only place of the guest tests that sleeps."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def until(what: str, read: Callable[[], T | None], seconds: float = 60.0, interval_seconds: float = 0.1) -> T:
    """The first answer of `read` that is true in a condition. AssertionError when there is none in time."""
    end = time.monotonic() + seconds
    while True:
        answer = read()
        if answer:
            return answer
        assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}; last answer: {answer!r}"
        time.sleep(interval_seconds)
