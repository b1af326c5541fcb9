# SPDX-License-Identifier: Apache-2.0
"""Where the kubelet is found: by the setting, at the places of distributions, and when there are several or none."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from kubenpu.cli.doctor_checks import CHECKS
from kubenpu.cli.doctor_findings import OK, WARN, Examination, examine
from kubenpu.config.settings import SETTINGS, Settings
from kubenpu.identity import kubelet_socket, podresources
from kubenpu.identity.kubelet_socket import AUTO, ROOTS, find_kubelet
from kubenpu.model.allocation import Listing
from kubenpu.service.kubelet import MaybeKubelet
from tests.fakes.dbus_node import VIEW


@pytest.fixture
def known(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Three places; nothing is there."""
    roots = [tmp_path / name for name in ("kubeadm", "k0s", "microk8s")]
    monkeypatch.setattr(kubelet_socket, "ROOTS", roots)
    for root in roots:
        (root / "pod-resources").mkdir(parents=True)
    return [root / "pod-resources" / "kubelet.sock" for root in roots]


def make(path: Path, second: int) -> None:
    path.touch()
    os.utime(path, (second, second))


def test_the_places_are_those_of_distributions() -> None:
    assert next(setting.default for setting in SETTINGS if setting.field == "kubelet_socket") == AUTO
    places = ("/var/lib/kubelet", "/var/lib/k0s/kubelet", "/var/snap/microk8s/common/var/lib/kubelet")
    assert tuple(map(Path, places)) == ROOTS


def test_the_one_that_is_there_is_found_and_of_several_the_newest(known: list[Path]) -> None:
    """The socket of a kubelet that is not there any more may be left over."""
    assert find_kubelet(AUTO) is None
    make(known[1], 5)
    assert find_kubelet(AUTO) == known[1]
    make(known[2], 4)
    assert find_kubelet(AUTO) == known[1]
    make(known[0], 6)
    assert find_kubelet(AUTO) == known[0]
    os.utime(known[0], (5, 5))
    assert find_kubelet(AUTO) == known[0]


def test_a_place_that_is_named_is_the_only_one(known: list[Path], tmp_path: Path) -> None:
    make(known[0], 5)
    assert find_kubelet(str(tmp_path / "other")) is None
    assert find_kubelet("") is None
    make(tmp_path / "other", 4)
    assert find_kubelet(str(tmp_path / "other")) == tmp_path / "other"


def test_a_place_that_cannot_be_looked_at_has_none(known: list[Path], tmp_path: Path) -> None:
    known[0].symlink_to(known[0])
    make(known[2], 5)
    assert find_kubelet(AUTO) == known[2]


# ---- kubenpud ----


class Asked:
    """Which kubelets a MaybeKubelet asked, and what it said of them."""

    def __init__(self, setting: str) -> None:
        self.sockets: list[Path] = []
        self.notes: list[tuple[str, str, bool]] = []
        self.kubelet = MaybeKubelet(setting, lambda: [], lambda: 7.0)

    def ask(self) -> list[Path]:
        self.kubelet.ask(lambda: VIEW, lambda name, reason, _seconds, up: self.notes.append((name, reason, up)))
        return self.sockets


@pytest.fixture
def asked(known: list[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[Asked]:
    made = Asked(AUTO)

    def listing(client: podresources.PodResources) -> Listing:
        made.sockets.append(client.socket)
        return Listing((), frozenset())

    monkeypatch.setattr(podresources.PodResources, "listing", listing)
    yield made
    made.kubelet.close()


def test_a_kubelet_that_comes_late_is_asked_then_and_a_newer_one_in_its_place(known: list[Path], asked: Asked) -> None:
    assert asked.ask() == []
    assert (asked.kubelet.known, asked.notes) == (None, [])
    make(known[0], 5)
    assert asked.ask() == [known[0]]
    assert asked.kubelet.known is not None
    make(known[1], 6)
    assert asked.ask() == [known[0], known[1]]
    known[0].unlink()
    known[1].unlink()
    assert asked.ask() == [known[0], known[1], known[1]]  # it is being restarted
    assert asked.notes == [("kubelet", "", True)] * 3


def test_after_another_setting_it_is_another_kubelet(known: list[Path], asked: Asked, tmp_path: Path) -> None:
    make(known[0], 5)
    asked.ask()
    assert not asked.kubelet.follow(AUTO)
    assert asked.kubelet.follow(str(tmp_path / "other"))
    assert asked.kubelet.known is None
    assert asked.ask() == [known[0]]
    make(tmp_path / "other", 1)
    assert asked.ask() == [known[0], tmp_path / "other"]


# ---- kubenpuctl doctor ----


def test_doctor_says_which_it_is(known: list[Path], settings: Settings) -> None:
    checks = [check for check in CHECKS if check[0] == "kubelet"]

    def doctor(setting: str) -> tuple[str, str, str]:
        (found,) = examine(Examination(replace(settings, kubelet_socket=setting), ()), checks)
        return found.status, found.found, found.remedy

    status, found, remedy = doctor(AUTO)
    assert (status, found.startswith("no socket at the known places")) == (OK, True)
    assert "identity.kubelet_socket" in remedy
    assert doctor("")[:2] == (OK, "not asked: identity.kubelet_socket is empty")
    status, found, remedy = doctor("/nonexistent/kubelet.sock")
    assert (status, found.startswith("no /nonexistent/kubelet.sock")) == (WARN, True)
    assert remedy
    make(known[2], 5)
    assert doctor(AUTO) == (OK, str(known[2]), "")
    assert doctor(str(known[2])) == (OK, str(known[2]), "")
