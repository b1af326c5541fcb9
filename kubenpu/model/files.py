# SPDX-License-Identifier: Apache-2.0
"""Reads a file that an operator wrote, whatever is at its place. Holds it open no longer than the reading.

Refuses what is no regular file without waiting for it, as a pipe would have one wait forever, and what is too long.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

MAX_FILE_BYTES = 1 << 20
_NULL = os.makedev(1, 3)  # /dev/null, the customary empty file


def read_regular_file(path: Path, most: int = MAX_FILE_BYTES) -> bytes:
    """Raises OSError, with words of ours in `strerror` where the system has none."""
    fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    with os.fdopen(fd, "rb") as file:
        status = os.fstat(fd)
        if not stat.S_ISREG(status.st_mode) and status.st_rdev != _NULL:
            raise OSError(errno.EINVAL, "not a regular file", str(path))
        content = file.read(most + 1)
    if len(content) > most:
        raise OSError(errno.EFBIG, f"larger than {most} bytes", str(path))
    return content
