# SPDX-License-Identifier: Apache-2.0
"""What the kernel and the C library are told about memory, so that a service that runs for months stays small."""

import ctypes

_PR_SET_THP_DISABLE = 41  # prctl(2); a kernel without huge pages refuses, which is as good
_M_ARENA_MAX = -8  # mallopt(3)
_libc = ctypes.CDLL(None)


def keep_small() -> None:
    """Small pages: some kernels give heap and text huge ones, whether they are needed whole or not. One heap for all
    threads, which Python lets run one at a time anyway."""
    _libc.prctl(_PR_SET_THP_DISABLE, 1, 0, 0, 0)
    _libc.mallopt(_M_ARENA_MAX, 1)
