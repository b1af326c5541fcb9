# SPDX-License-Identifier: Apache-2.0
"""What README.md, ARCHITECTURE.md and systemd are told of the Varlink interface is what api/varlink.py declares."""

from __future__ import annotations

import re

from kubenpu.api import varlink as api
from kubenpu.config.settings import SETTINGS
from kubenpu.exporters import varlink
from tests.rules.tree import ROOT

README = " ".join((ROOT / "README.md").read_text().split())
SECTION = README.partition("## Varlink ")[2].partition(" ## ")[0]
SOCKET = dict(re.findall(r"^(\w+)=(.*)$", (ROOT / "systemd/kubenpud-varlink.socket").read_text(), re.M))


def test_architecture_tells_the_limits() -> None:
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert f"{api.MAX_CONNECTIONS} connections, of which" in text
    assert f"calls of {api.MAX_CALL_BYTES // 1024} KiB" in text


def test_examples_name_what_there_is() -> None:
    called = set(re.findall(rf"{re.escape(api.NAME)}\.(\w+) '", SECTION))
    assert called
    assert called <= {method.name for method in api.METHODS}


def test_systemd_and_the_setting_name_the_same_socket() -> None:
    (setting,) = (each for each in SETTINGS if each.key == "varlink.address")
    assert setting.default == f"unix:{SOCKET['ListenStream']}"
    assert f"`{SOCKET['ListenStream']}`" in SECTION
    assert int(SOCKET["SocketMode"], 8) == varlink.MODE
    assert SOCKET["FileDescriptorName"] == varlink.SYSTEMD_NAME
