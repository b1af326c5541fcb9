# SPDX-License-Identifier: Apache-2.0
"""Labels of pods: who is asked, how often, and what is believed of an answer."""

from __future__ import annotations

from collections.abc import Sequence

from kubenpu.identity.labels import PodLabels
from kubenpu.model.errors import SourceError


class FakeRuntime:
    """Knows `pods`; silent while it is `down`."""

    def __init__(self, **pods: dict[str, str]) -> None:
        self.pods = pods
        self.down = False
        self.asked: list[str] = []

    def pod_labels(self, pod_uid: str, keys: Sequence[str], timeout_s: float | None) -> dict[str, str] | None:
        self.asked.append(pod_uid)
        if self.down:
            raise SourceError("no answer")
        found = self.pods.get(pod_uid)
        return None if found is None else {key: found[key] for key in keys if key in found}


def test_every_pod_is_asked_about_once() -> None:
    one, other = FakeRuntime(u1={"team": "blue", "app": "x"}), FakeRuntime(u2={})
    labels = PodLabels(lambda: [one, other], ["team"])
    for _ in range(3):
        labels.look_up({"u1", "u2", "u3"}, 1.0)
    assert labels.known == {"u1": {"team": "blue"}, "u2": {}, "u3": {}}
    assert sorted(one.asked + other.asked) == ["u1", "u2", "u2", "u3", "u3"]


def test_nobody_is_asked_when_nothing_is_wanted() -> None:
    runtime = FakeRuntime(u1={"team": "blue"})
    labels = PodLabels(lambda: [runtime], [])
    labels.look_up({"u1"}, 1.0)
    assert (labels.known, runtime.asked) == ({}, [])


def test_a_runtime_that_is_silent_or_not_there_yet_is_asked_again() -> None:
    silent, denying = FakeRuntime(u1={"team": "blue"}), FakeRuntime()
    silent.down = True
    runtimes: list[FakeRuntime] = []
    labels = PodLabels(lambda: runtimes, ["team"])
    labels.look_up({"u1"}, 1.0)
    runtimes += [silent, denying]
    labels.look_up({"u1"}, 1.0)
    assert labels.known == {}
    silent.down = False
    labels.look_up({"u1"}, 1.0)
    assert labels.known == {"u1": {"team": "blue"}}


def test_pods_that_are_gone_are_forgotten_and_other_keys_asked_for() -> None:
    runtime = FakeRuntime(u1={"team": "blue", "cost": "7"}, u2={})
    labels = PodLabels(lambda: [runtime], ["team"])
    labels.look_up({"u1", "u2"}, 1.0)
    labels.look_up({"u1"}, 1.0)
    assert labels.known == {"u1": {"team": "blue"}}
    labels.follow(["team"])
    assert labels.known == {"u1": {"team": "blue"}}
    labels.follow(["cost"])
    labels.look_up({"u1"}, 1.0)
    assert labels.known == {"u1": {"cost": "7"}}


def test_it_takes_no_longer_than_it_may() -> None:
    now = 0.0

    def clock() -> float:
        nonlocal now
        now += 0.4
        return now

    runtime = FakeRuntime()
    labels = PodLabels(lambda: [runtime], ["team"], clock)
    labels.look_up({f"u{n}" for n in range(10)}, 1.0)
    assert len(runtime.asked) == len(labels.known) == 2
