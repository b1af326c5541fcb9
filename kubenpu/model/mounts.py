# SPDX-License-Identifier: Apache-2.0
"""Where a file system is mounted, from the text of /proc/self/mounts. Pure."""

from __future__ import annotations

import re
from pathlib import Path

_OCTAL = re.compile(r"\\([0-7]{3})")


def find_mount(mounts: str, kind: str, below: str = "/") -> Path | None:
    """First mount point of file system `kind` at or below a path, None when there is none."""
    for line in mounts.splitlines():
        fields = line.split(" ")
        if len(fields) > 2 and fields[2] == kind:
            place = _OCTAL.sub(lambda match: chr(int(match[1], 8)), fields[1])
            if (place + "/").startswith(below.rstrip("/") + "/"):
                return Path(place)
    return None
