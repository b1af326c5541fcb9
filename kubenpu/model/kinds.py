# SPDX-License-Identifier: Apache-2.0
"""What an ioctl is for. The numbers are the column order of every counter in the pinned maps (bpf/drm_ioctl.h)."""

from __future__ import annotations

import enum


class Kind(enum.IntEnum):
    """Purpose of an ioctl; the lower-case name is the `kind` label and the word used in driver tables."""

    SUBMIT = 0
    ALLOC = 1
    FREE = 2
    MAP = 3
    WAIT = 4
    CONTEXT = 5
    OTHER = 6

    @property
    def label(self) -> str:
        return self.name.lower()


KINDS: tuple[Kind, ...] = tuple(Kind)
ELSEWHERE = len(KINDS)
"""In place of a kind, in what is written to the kernel: the other hook counts such calls."""
KIND_LABELS = tuple(kind.label for kind in KINDS)
