# SPDX-License-Identifier: Apache-2.0
"""Where the kubelet has its socket for pod-resources, by the setting and by what is in the file system now.

Owns the places that distributions use. Asks nobody, refuses nothing: where it may not look there is no socket.
"""

from __future__ import annotations

from pathlib import Path

AUTO = "auto"
ROOTS = tuple(map(Path, ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")))
BELOW_ROOT = "pod-resources/kubelet.sock"


def find_kubelet(setting: str) -> Path | None:
    """The socket to ask, None when there is none. Of several the newest: a kubelet makes its own when it starts."""
    if not setting:
        return None
    made: dict[Path, int] = {}
    for path in [root / BELOW_ROOT for root in ROOTS] if setting == AUTO else [Path(setting)]:
        try:
            made[path] = path.stat().st_mtime_ns
        except OSError:
            continue  # not there, or in a directory that this process may not look into
    return max(made, key=made.__getitem__, default=None)
