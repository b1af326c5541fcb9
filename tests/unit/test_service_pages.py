# SPDX-License-Identifier: Apache-2.0
"""Huge pages: the services do without, from before their large imports on."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import ctypes
import kubenpu.service
print(ctypes.CDLL(None).prctl(42, 0, 0, 0, 0))  # PR_GET_THP_DISABLE
"""


def test_the_services_do_without_huge_pages() -> None:
    done = subprocess.run([sys.executable, "-c", PROGRAM], check=True, capture_output=True, text=True, timeout=60)
    assert done.stdout == "1\n"
