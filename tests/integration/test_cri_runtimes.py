# SPDX-License-Identifier: Apache-2.0
"""Several container runtimes on a node: found, lost, late, restarted and silent, over real gRPC and real sockets."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from kubenpu.identity.cri import BACKOFF_MAX_S, SEARCH_EVERY_S, CriClient, Runtimes, find_sockets
from kubenpu.identity.resolve import Resolver
from kubenpu.model.identity import OwnerKind
from tests.fakes.cri_server import FakeCri, FakePod
from tests.fakes.cri_time import PATIENCE_S, Clock, seconds_of, until
from tests.fakes.grpc_service import silent_socket

A, BOX = "a" * 64, "c" * 64
UID = "11111111-2222-3333-4444-555555555555"
PATH = f"/kubepods/burstable/pod{UID}/{A}"
SHORT_S = 0.3


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeCri]:
    fake = FakeCri(tmp_path / "cri.sock", [FakePod(UID, "train-0", "ml", BOX, {A: "worker"})])
    fake.start()
    yield fake
    fake.stop()


def test_two_runtimes_on_one_node_each_with_its_own_pods(server: FakeCri, tmp_path: Path) -> None:
    """As a node that moves from one runtime to another; one of them is restarted and knows all that it knew."""
    other_uid, other_id = "99999999-8888-7777-6666-555555555555", "b" * 64
    other = FakeCri(tmp_path / "crio.sock", [FakePod(other_uid, "shop", "web", "d" * 64, {other_id: "nginx"})], "cri-o")
    other.start()
    clock = Clock()
    runtimes = Runtimes(None, PATIENCE_S, clock, [server.path, other.path])
    resolver = Resolver(runtimes.clients)
    other_path = f"/kubepods.slice/kubepods-pod{other_uid.replace('-', '_')}.slice/crio-{other_id}.scope"

    def names() -> list[str]:
        clock.now += BACKOFF_MAX_S
        return [resolver.resolve(path).owner.container for path in (PATH, other_path)]

    assert names() == ["worker", "nginx"]
    other.stop()
    assert names() == ["worker", ""]
    other.start()
    until(lambda: names() == ["worker", "nginx"])
    runtimes.close()
    other.stop()


def test_silent_socket_does_not_keep_the_answer_of_another(server: FakeCri, tmp_path: Path) -> None:
    with silent_socket(tmp_path / "silent.sock"):
        silent = CriClient(tmp_path / "silent.sock", SHORT_S)
        good = CriClient(server.path, PATIENCE_S)
        resolver = Resolver(lambda: (silent, good))
        first = seconds_of(lambda: resolver.resolve(PATH))
        answer = resolver.resolve(PATH)
        assert (answer.owner.kind, answer.owner.container) == (OwnerKind.POD, "worker")
        assert SHORT_S <= first < SHORT_S + 2
        assert seconds_of(lambda: [resolver.resolve(PATH) for _ in range(20)]) < first + 1
        silent.close()
        good.close()


def test_a_look_tells_whether_somebody_listens(tmp_path: Path) -> None:
    now = [0.0]
    path = tmp_path / "cri.sock"
    runtimes = Runtimes([path], clock=lambda: now[0])

    def trouble() -> str:
        (client,) = runtimes.clients()
        return client.trouble

    assert "nobody listens" in trouble()
    with silent_socket(path):
        assert "nobody listens" in trouble()  # it is looked for every SEARCH_EVERY_S
        now[0] += SEARCH_EVERY_S
        assert trouble() == ""
    now[0] += SEARCH_EVERY_S
    assert "nobody listens" in trouble()
    runtimes.close()


def test_search_counts_a_linked_socket_once_and_takes_no_plain_file(server: FakeCri, tmp_path: Path) -> None:
    (tmp_path / "link.sock").symlink_to(server.path)
    (tmp_path / "file.sock").write_text("")
    (tmp_path / "dangling.sock").symlink_to(tmp_path / "nowhere")
    known = [server.path, *(tmp_path / name for name in ("link.sock", "file.sock", "dangling.sock", "none.sock"))]
    assert find_sockets(None, known) == [server.path]
    assert find_sockets([tmp_path / "none.sock"], known) == [tmp_path / "none.sock"]


def test_runtime_that_appears_later_is_used_and_one_that_goes_is_kept(tmp_path: Path) -> None:
    clock = Clock()
    fake = FakeCri(tmp_path / "late.sock")
    runtimes = Runtimes(None, SHORT_S, clock, [fake.path])
    assert runtimes.clients() == ()
    fake.start()
    assert runtimes.clients() == ()
    clock.now += SEARCH_EVERY_S
    (one,) = runtimes.clients()
    assert one.version().name == "containerd"
    fake.stop()
    clock.now += SEARCH_EVERY_S
    assert runtimes.clients() == (one,)
    runtimes.close()


def test_other_sockets_are_followed(tmp_path: Path) -> None:
    first, second = FakeCri(tmp_path / "first.sock"), FakeCri(tmp_path / "second.sock")
    first.start()
    second.start()
    runtimes = Runtimes([first.path], SHORT_S, Clock(), [second.path])
    assert [client.socket for client in runtimes.clients()] == [first.path]
    for explicit, expected in (([second.path, first.path], [second.path, first.path]), (None, [second.path])):
        runtimes.follow(explicit)
        assert [client.socket for client in runtimes.clients()] == expected
        assert [client.version().name for client in runtimes.clients()] == ["containerd"] * len(expected)
    runtimes.close()
    first.stop()
    second.stop()
