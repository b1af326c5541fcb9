# SPDX-License-Identifier: Apache-2.0
"""The kubelet's pod-resources over real gRPC and a real socket: answers, and kubelets that are silent or restarted."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path

import grpc
import pytest

from kubenpu.identity.cri import CriClient
from kubenpu.identity.podresources import MAX_OF_CONTAINER, PodResources
from kubenpu.model.allocation import Claimed, Listing
from kubenpu.model.errors import SourceError
from tests.fakes.cri_server import FakeCri, FakePod
from tests.fakes.cri_time import PATIENCE_S, until
from tests.fakes.grpc_service import silent_socket
from tests.fakes.kubelet_server import FakeHolder, FakeKubelet

SHORT_S = 0.3
WORKER = FakeHolder(
    "ml", "train-0", "worker", {"amd.com/gpu": ["0000:03:00.0"]}, [("ml/c", "gpu.x", "n1", "g0", ["x/g=0"])]
)
LOG = FakeHolder("ml", "train-0", "log")


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeKubelet]:
    fake = FakeKubelet(tmp_path / "kubelet.sock", [WORKER, LOG])
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def client(server: FakeKubelet) -> Iterator[PodResources]:
    one = PodResources(server.path, PATIENCE_S)
    yield one
    one.close()


def refusal(client: PodResources) -> str:
    with pytest.raises(SourceError) as caught:
        client.listing()
    return caught.value.cause


def test_the_answer(client: PodResources) -> None:
    place = ("ml", "train-0", "worker")
    plugin = Claimed(*place, "amd.com/gpu", "0000:03:00.0", "", ("0000:03:00.0",))
    claim = Claimed(*place, "gpu.x", "n1/g0", "ml/c", ("g0", "x/g=0"))
    assert client.listing() == Listing((plugin, claim), frozenset({"ml/train-0/worker", "ml/train-0/log"}))


def test_two_hundred_and_fifty_pods(server: FakeKubelet, client: PodResources) -> None:
    server.holders = [FakeHolder("load", f"p-{n}", "c", {"r": [f"card{n}", f"{n}"]}) for n in range(250)]
    begin = time.process_time()
    listing = client.listing()
    print(f"250 pods: {(time.process_time() - begin) * 1000:.0f} ms of CPU time, the stand-in's part included")
    assert len(listing.containers) == 250
    assert {(each.pod, each.device_id) for each in listing.claimed} == {
        (f"p-{n}", device) for n in range(250) for device in (f"card{n}", f"{n}")
    }


@pytest.mark.parametrize(
    ("code", "text"), [(grpc.StatusCode.UNIMPLEMENTED, "unknown service v1"), (grpc.StatusCode.INTERNAL, "a\n\x1b[2J")]
)
def test_refusals_say_why(server: FakeKubelet, client: PodResources, code: grpc.StatusCode, text: str) -> None:
    server.error = (code, text)
    said = refusal(client)
    assert code.name in said
    assert said.isprintable()
    server.error = None
    assert client.listing().claimed


def test_an_answer_that_is_none(server: FakeKubelet, client: PodResources) -> None:
    server.answer = b"\x0a\xff"
    assert "no usable answer (the message is cut short)" in refusal(client)
    server.answer = b"\x0a\x03" + b"\x0a\x01x"
    assert client.listing() == Listing((), frozenset())


def test_an_answer_above_the_limit(server: FakeKubelet, client: PodResources) -> None:
    """The kubelet sends up to 16 MiB."""
    padding = b"\x7a\x80\x80\xfc\x07" + bytes(0xFF << 16)  # a field that nobody knows
    server.answer = padding
    assert client.listing() == Listing((), frozenset())
    server.answer = padding + padding
    assert "RESOURCE_EXHAUSTED" in refusal(client)
    with pytest.raises(SourceError, match="device plugin"):
        client.listing()


def test_a_container_with_very_many_devices(server: FakeKubelet, client: PodResources) -> None:
    server.holders = [FakeHolder("x", "mem", "c", {"gpu-mem": [f"GPU-1-_-{n}" for n in range(200_000)]}), WORKER]
    listing = client.listing()
    assert len(listing.claimed) == MAX_OF_CONTAINER + 2
    assert {each.device_id for each in listing.claimed if each.pod == "train-0"} == {"0000:03:00.0", "n1/g0"}
    assert listing.left_out.startswith("of x/mem/c no more than")


def test_a_kubelet_that_hangs_costs_one_deadline(server: FakeKubelet) -> None:
    server.hang = True
    one = PodResources(server.path, SHORT_S)
    begin = time.monotonic()
    assert "DEADLINE_EXCEEDED" in refusal(one)
    assert SHORT_S <= time.monotonic() - begin < SHORT_S + 2
    server.hang = False
    server.release()
    assert one.listing().claimed
    one.close()


def test_a_socket_that_accepts_and_never_answers(tmp_path: Path) -> None:
    with silent_socket(tmp_path / "s"):
        one = PodResources(tmp_path / "s", SHORT_S)
        begin = time.monotonic()
        assert "gave no answer" in refusal(one)
        assert time.monotonic() - begin < SHORT_S + 2
        one.close()


def test_a_restarted_kubelet_is_found_again(server: FakeKubelet, client: PodResources) -> None:
    assert client.listing().claimed
    server.stop()
    assert "UNAVAILABLE" in refusal(client)
    server.holders = [LOG]
    server.start()

    def answers() -> bool:
        try:
            return client.listing() == Listing((), frozenset({"ml/train-0/log"}))
        except SourceError:
            return False

    until(answers)


def test_nobody_there(tmp_path: Path) -> None:
    one = PodResources(tmp_path / "none.sock", PATIENCE_S)
    begin = time.monotonic()
    assert "UNAVAILABLE" in refusal(one)
    assert time.monotonic() - begin < PATIENCE_S / 2
    one.close()


def test_uid_of_the_pod_that_has_a_name_now(tmp_path: Path) -> None:
    """Asked of the runtime. Of two pods of one name the one whose sandbox is ready; users' labels name no pod."""
    old, new = FakePod("old", "web-0", "shop", "d" * 64, ready=False), FakePod("new", "web-0", "shop", "e" * 64)
    forged = FakePod("evil", "mine", "x", "f" * 64, labels={"app": "web-0"})
    runtime = FakeCri(tmp_path / "cri.sock", [old, new, forged])
    runtime.start()
    client = CriClient(runtime.path, PATIENCE_S)
    assert client.uid_of_pod("shop", "web-0") == "new"
    assert client.uid_of_pod("x", "web-0") == ""
    new.ready = False
    assert client.uid_of_pod("shop", "web-0") == ""
    client.close()
    runtime.stop()
