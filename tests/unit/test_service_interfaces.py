# SPDX-License-Identifier: Apache-2.0
"""What the daemon serves besides metrics, and what it does where that cannot be."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from tests.fakes.daemon_rig import Rig
from tests.fakes.varlink_peer import Peer


def test_varlink_is_served_and_its_socket_goes(rig: Rig, tmp_path: Path) -> None:
    def script() -> None:
        rig.hear("READY=1")
        with Peer(tmp_path / "varlink") as peer:
            assert peer.ask("GetInfo")["parameters"]["nodeName"] == "n"

    rig.run(script)
    assert ("varlink", "") in rig.node.notes
    assert not (tmp_path / "varlink").exists()


def test_without_the_library_varlink_is_down_and_the_rest_goes_on(rig: Rig, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in sys.modules if name.startswith(("varlink.", "kubenpu.exporters.varlink"))]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "varlink", None)

    def script() -> None:
        rig.hear("READY=1")
        assert rig.ask("/metrics")[0] == 200

    rig.run(script)
    reason = "the library python3-varlink is missing. Install it, or empty varlink.address."
    assert ("varlink", reason) in rig.node.notes


def test_an_address_that_cannot_be_had_stops_nothing(rig: Rig, tmp_path: Path) -> None:
    (tmp_path / "varlink").write_text("precious")

    def script() -> None:
        rig.hear("READY=1")
        assert rig.ask("/metrics")[0] == 200

    rig.run(script)
    ((_, reason),) = [note for note in rig.node.notes if note[0] == "varlink"]
    assert reason.startswith(f"cannot listen on unix:{tmp_path}/varlink: Address already in use.")
