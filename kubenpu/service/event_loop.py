# SPDX-License-Identifier: Apache-2.0
"""asyncio without OpenSSL. Import it from here and before anything else that imports asyncio.

asyncio imports ssl for TLS streams, where Python has it. kubenpud has none (its web server makes TLS in threads), and
OpenSSL is 4 MiB that stay. Whoever imports ssl afterwards gets it.
"""

from __future__ import annotations

import sys

_HAD_SSL = "ssl" in sys.modules
if not _HAD_SSL:
    sys.modules["ssl"] = None  # type: ignore[assignment]  # Python's way to say that there is none

import asyncio  # noqa: E402

if not _HAD_SSL:
    del sys.modules["ssl"]

__all__ = ["asyncio"]
