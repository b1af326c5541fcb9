# SPDX-License-Identifier: Apache-2.0
"""What kubenpud does not load: the modules that its memory was freed from, and that come back with one import."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

HEAVY = {
    "ssl": "OpenSSL, 4 MiB",
    "_hashlib": "OpenSSL",
    "email": "the mail parser",
    "google.protobuf": "5 MiB",
    "http.client": "OpenSSL, the mail parser",
    "http.server": "the same and more",
    "importlib.resources": "0.6 MiB",
    "prometheus_client": "an HTTP client, servers, OpenSSL",
    "html.entities": "0.4 MiB",
    "difflib": "0.2 MiB",
    "kubenpu.identity.containers": "of no use where all containers are pods'",
}
SCRIPT = """
import json, sys
import kubenpu.service.daemon, kubenpu.exporters.dbus
assert "sqlite3" not in sys.modules
import kubenpu.history.recorder, kubenpu.history.report
loaded = sorted(sys.modules)
import ssl
assert ssl.create_default_context() is not None
import prometheus_client
assert prometheus_client.CollectorRegistry is kubenpu.exporters.prometheus.CollectorRegistry
print(json.dumps(loaded))
"""


def test_kubenpud_does_not_load_what_it_does_not_need() -> None:
    command = [sys.executable, "-c", SCRIPT]
    done = subprocess.run(command, cwd=Path(__file__).parents[2], capture_output=True, text=True, check=True)
    loaded = set(json.loads(done.stdout))
    assert {"asyncio", "grpc", "kubenpu.exporters.dbus_next_parts"} <= loaded
    assert sorted(loaded & HEAVY.keys()) == []
