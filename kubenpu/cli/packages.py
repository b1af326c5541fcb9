# SPDX-License-Identifier: Apache-2.0
"""What KubeNPU needs besides Python itself, by the names that distributions have for it. Looks, imports nothing."""

from __future__ import annotations

import importlib.util
import sys
from typing import NamedTuple


class Package(NamedTuple):
    """`module` is what Python imports; without it `lost` is what does not work."""

    module: str
    debian: str
    fedora: str
    lost: str

    @property
    def remedy(self) -> str:
        return f"Install {self.debian}" + ("" if self.fedora == self.debian else f" ({self.fedora} on Fedora)")


PACKAGES = (
    Package("dbus_next", "python3-dbus-next", "python3-dbus-next", "D-Bus, and with it kubenpuctl pods, top and watch"),
    Package("grpc", "python3-grpcio", "python3-grpcio", "asking container runtimes for the names of pods"),
    Package("prometheus_client", "python3-prometheus-client", "python3-prometheus_client", "metrics"),
    Package("sdnotify", "python3-sdnotify", "python3-sdnotify", "telling systemd that kubenpud is ready"),
)


def is_missing(package: Package) -> bool:
    return package.module not in sys.modules and importlib.util.find_spec(package.module) is None


def explain_missing(error: ModuleNotFoundError) -> tuple[str, str]:
    """Cause and remedy of an import that failed."""
    name = (error.name or "").partition(".")[0]
    for package in PACKAGES:
        if package.module == name:
            return f"Python's {name} is missing", package.remedy
    return f"Python's {name or error} is missing", ""
