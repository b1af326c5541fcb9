# SPDX-License-Identifier: Apache-2.0
"""CRI over real gRPC and real sockets: answers, absences, runtimes that are slow, silent, wrong or being restarted."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubenpu.identity.cri import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    ContainerInfo,
    CriClient,
    RuntimeVersion,
    SandboxInfo,
    backoff_s,
)
from kubenpu.identity.resolve import Resolver
from kubenpu.model.errors import SourceError
from tests.fakes import cri_pb2
from tests.fakes.cri_server import FakeCri, FakePod
from tests.fakes.cri_time import PATIENCE_S, Clock, seconds_of, until

A, BOX = "a" * 64, "c" * 64
UID = "11111111-2222-3333-4444-555555555555"
PATH = f"/kubepods/burstable/pod{UID}/{A}"
SHORT_S = 0.3

EMPTY_SETTINGS = bytes(3) + b"\x04" + bytes(5)  # of HTTP/2: the server is ready


@pytest.fixture
def server(tmp_path: Path) -> Iterator[FakeCri]:
    fake = FakeCri(tmp_path / "cri.sock", [FakePod(UID, "train-0", "ml", BOX, {A: "worker"})])
    fake.start()
    yield fake
    fake.stop()


@pytest.fixture
def client(server: FakeCri) -> Iterator[CriClient]:
    one = CriClient(server.path, PATIENCE_S)
    yield one
    one.close()


def test_container_and_sandbox(client: CriClient) -> None:
    assert client.container(A) == ContainerInfo(A, "worker", "ml", "train-0", UID)
    assert client.sandbox(BOX) == SandboxInfo(BOX, "ml", "train-0", UID)
    assert client.sandbox_of_pod(UID) == SandboxInfo(BOX, "ml", "train-0", UID)
    assert client.version() == RuntimeVersion("containerd", "fake")


@pytest.mark.parametrize(
    ("image", "shown"),
    [
        (cri_pb2.ImageSpec(image="sha256:0a"), "sha256:0a"),
        (cri_pb2.ImageSpec(image="sha256:0a", user_specified_image="ghcr.io/train:1"), "ghcr.io/train:1"),
        (cri_pb2.ImageSpec(image="x\n" + "y" * 400), r"x\n" + "y" * 253),
    ],
    ids=["runtime's", "pod's", "hostile"],
)
def test_image_of_a_container(server: FakeCri, client: CriClient, image: cri_pb2.ImageSpec, shown: str) -> None:
    server.pods[0].image = image
    container = client.container(A)
    assert container is not None
    assert container.image == shown


def test_authority_is_no_socket_path(tmp_path: Path) -> None:
    """gRPC's own would be the percent-encoded path, which servers in Rust and Go refuse. Read off the wire."""
    path = tmp_path / "wire.sock"
    with socket.socket(socket.AF_UNIX) as listener, ThreadPoolExecutor(1) as pool:
        listener.bind(str(path))
        listener.listen()
        listener.settimeout(PATIENCE_S)
        client = CriClient(path, PATIENCE_S)
        asking = pool.submit(client.version)
        connection, _ = listener.accept()
        with connection:
            connection.settimeout(PATIENCE_S)
            connection.sendall(EMPTY_SETTINGS)
            sent = b""
            while b"localhost" not in sent and b"wire.sock" not in sent:
                received = connection.recv(65536)
                assert received, "the client hung up"
                sent += received
            client.close()
        with pytest.raises(SourceError):
            asking.result(PATIENCE_S)
    assert b"wire.sock" not in sent


def test_absent_is_none(client: CriClient) -> None:
    assert client.container(BOX) is None
    assert client.sandbox(A) is None
    assert client.sandbox_of_pod("other") is None


def test_answer_for_a_prefix_is_no_answer(client: CriClient) -> None:
    assert client.container(A[:12]) is None
    assert client.sandbox(BOX[:12]) is None


def test_user_labels_of_a_pod_cannot_rename_it(server: FakeCri, client: CriClient) -> None:
    server.pods[0].labels = {"app": "x\n", "io.kubernetes.container.name": "mine"}
    sandbox = client.sandbox(BOX)
    assert sandbox is not None
    assert (sandbox.namespace, sandbox.pod) == ("ml", "train-0")


def test_labels_and_annotations_of_a_pod(server: FakeCri, client: CriClient) -> None:
    """A label counts more than an annotation of the same key; what nobody asked for stays where it is."""
    server.pods[0].labels = {"team": "blue\u202e", "both": "label", "secret": "x"}
    server.pods[0].annotations = {"example.com/cost": "7" * 300, "both": "annotation"}
    keys = ["team", "both", "example.com/cost", "none"]
    wanted = {"team": r"blue\u202e", "both": "label", "example.com/cost": "7" * 253}
    assert client.pod_labels(UID, keys) == wanted
    assert client.pod_labels("other", keys) is None


def test_the_sandbox_that_is_ready_then_the_newest_tells_of_its_pod(server: FakeCri, client: CriClient) -> None:
    """A pod was labelled anew and its sandbox made anew, as at a reboot; runtimes list them in any order."""
    old = FakePod(UID, "train-0", "ml", BOX, labels={"team": "blue"}, ready=False, created_ns=1)
    newer = FakePod(UID, "train-0", "ml", "d" * 64, labels={"team": "green"}, ready=False, created_ns=2)
    ready = FakePod(UID, "train-0", "ml", "e" * 64, labels={"team": "red"}, created_ns=0)
    for known, team in (([old, newer, ready], "red"), ([old, newer], "green")):
        for server.pods in (known, known[::-1]):
            assert client.pod_labels(UID, ["team"]) == {"team": team}
            box = client.sandbox_of_pod(UID)
            assert box is not None
            assert box.id == known[-1].sandbox_id


def test_hostile_names_arrive_cleaned(server: FakeCri, client: CriClient) -> None:
    server.pods[0] = FakePod(UID, "p\n" + "x" * 400, 'n"\x1b[0m', BOX, {A: "größe\u202e"})
    container = client.container(A)
    assert container is not None
    assert (container.namespace, container.name) == (r'n"\x1b[0m', r"größe\u202e")
    assert container.pod == r"p\n" + "x" * 251


def test_sandbox_without_kubelet_labels_is_named_by_its_metadata(server: FakeCri, client: CriClient) -> None:
    server.pods[0].labels = {key: "" for key in server.pods[0].sandbox_labels()}
    assert client.sandbox(BOX) == SandboxInfo(BOX, "ml", "train-0", UID)


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (grpc.StatusCode.NOT_FOUND, "gone"),
        (grpc.StatusCode.UNKNOWN, "Error: No such container: aaa"),
        (grpc.StatusCode.UNKNOWN, 'failed to parse the container name: "train"'),
        (grpc.StatusCode.UNKNOWN, 'container is not managed by kubernetes: "a_b_c_d_e_f"'),
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService"),
    ],
)
def test_errors_that_mean_absent(server: FakeCri, client: CriClient, code: grpc.StatusCode, text: str) -> None:
    server.error = (code, text)
    assert client.container(A) is None
    assert client.trouble == ""


def test_socket_that_is_no_cri(server: FakeCri, client: CriClient) -> None:
    server.error = (grpc.StatusCode.UNIMPLEMENTED, "unknown service")
    with pytest.raises(SourceError, match="does not speak CRI v1"):
        client.version()


def test_other_errors_are_no_answer_and_no_reason_to_wait(server: FakeCri, client: CriClient) -> None:
    server.error = (grpc.StatusCode.INTERNAL, "boom\n" + "x" * 1000)
    with pytest.raises(SourceError, match=r"INTERNAL: boom\\n") as caught:
        client.container(A)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500
    server.error = None
    assert client.container(A) is not None


def test_answers_larger_than_grpc_allows_by_default(server: FakeCri, client: CriClient) -> None:
    server.pods[0].labels = {"big": "x" * (6 << 20)}
    assert client.container(A) is not None


def test_runtime_that_hangs_costs_one_deadline_then_nothing(server: FakeCri) -> None:
    server.hang = True
    clock = Clock()
    one = CriClient(server.path, SHORT_S, clock)

    def ask() -> None:
        with pytest.raises(SourceError):
            one.container(A)

    assert SHORT_S <= seconds_of(ask) < SHORT_S + 2
    trouble = one.trouble
    assert "DEADLINE_EXCEEDED" in trouble
    assert seconds_of(ask) < SHORT_S / 2, "during the back-off the runtime is not asked"
    assert one.trouble == trouble, "the back-off does not hide why"
    assert server.calls["ContainerStatus"] == 1
    server.hang = False
    server.release()
    clock.now += backoff_s(1)
    assert one.container(A) is not None
    assert one.trouble == ""
    one.close()


def test_back_off_doubles_and_an_answer_ends_it(server: FakeCri) -> None:
    clock = Clock()
    one = CriClient(server.path, PATIENCE_S, clock)
    server.error = (grpc.StatusCode.UNAVAILABLE, "server is not initialized yet")
    for failures in (1, 2, 3):
        for _ in range(2):
            with pytest.raises(SourceError):
                one.container(A)
        assert server.calls["ContainerStatus"] == failures
        clock.now += backoff_s(failures) + 0.001
    server.error = None
    assert one.container(A) is not None
    server.error = (grpc.StatusCode.UNAVAILABLE, "again")
    with pytest.raises(SourceError, match="UNAVAILABLE"):
        one.container(A)
    clock.now += BACKOFF_FIRST_S + 0.001
    with pytest.raises(SourceError, match="UNAVAILABLE"):
        one.container(A)
    one.close()


def test_back_off_is_bounded() -> None:
    assert backoff_s(1) == BACKOFF_FIRST_S
    assert backoff_s(10**6) == BACKOFF_MAX_S


def test_deadline_of_the_caller_is_kept(server: FakeCri, client: CriClient) -> None:
    server.hang = True

    def ask() -> None:
        with pytest.raises(SourceError, match="DEADLINE_EXCEEDED"):
            client.container(A, SHORT_S)

    assert seconds_of(ask) < SHORT_S + 2


def test_no_socket_fails_at_once(tmp_path: Path) -> None:
    one = CriClient(tmp_path / "no such.sock", PATIENCE_S)

    def ask() -> None:
        with pytest.raises(SourceError, match="UNAVAILABLE") as caught:
            one.container(A)
        assert "active" in caught.value.remedy

    assert seconds_of(ask) < PATIENCE_S / 2
    one.close()


def test_restarted_runtime_is_found_again(server: FakeCri) -> None:
    clock = Clock()
    one = CriClient(server.path, PATIENCE_S, clock)
    assert one.container(A) is not None
    server.stop()
    with pytest.raises(SourceError):
        one.container(A)
    server.start()

    def answers() -> bool:
        clock.now += BACKOFF_MAX_S
        try:
            return one.container(A) is not None
        except SourceError:
            return False

    until(answers)
    one.close()


def test_socket_path_with_odd_characters(tmp_path: Path) -> None:
    fake = FakeCri(tmp_path / "a b%41.sock", [FakePod(UID, "p", "n", BOX, {A: "c"})])
    real = tmp_path / "plain.sock"
    fake.path, odd = real, fake.path
    fake.start()
    odd.symlink_to(real)
    one = CriClient(odd, PATIENCE_S)
    assert one.container(A) is not None
    one.close()
    fake.stop()


def test_a_thousand_containers_each_to_its_own(tmp_path: Path) -> None:
    pods = [
        FakePod(f"00000000-0000-0000-0000-{n:012x}", f"pod-{n}", "load", f"{n:064x}", {f"{n + 4096:064x}": f"c-{n}"})
        for n in range(1000)
    ]
    fake = FakeCri(tmp_path / "many.sock", pods)
    fake.start()
    one = CriClient(fake.path, PATIENCE_S)
    resolver = Resolver(lambda: [one])
    paths = {f"/kubepods/pod{pod.uid}/{container}": pod for pod in pods for container in pod.containers}
    answers = resolver.resolve_many(dict.fromkeys(paths, 0), deadline_s=60)
    assert {path: answer.owner.pod for path, answer in answers.items()} == {p: pod.name for p, pod in paths.items()}
    one.close()
    fake.stop()


def test_stand_alone_process_reads_its_pods_again(tmp_path: Path) -> None:
    pods = tmp_path / "pods.json"
    pods.write_text("[]", encoding="utf-8")
    command = [sys.executable, "-m", "tests.fakes.cri_server", "--socket", str(tmp_path / "s"), "--pods", str(pods)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline().startswith("serving 0 pods")
            one = CriClient(tmp_path / "s", PATIENCE_S)
            assert one.container(A) is None
            pods.write_text(
                f'[{{"uid": "{UID}", "name": "p", "namespace": "n", "sandbox_id": "{BOX}",'
                f' "containers": {{"{A}": "c"}}}}]',
                encoding="utf-8",
            )
            os.kill(process.pid, signal.SIGHUP)
            until(lambda: one.container(A) is not None)
            one.close()
        finally:
            process.terminate()
    assert process.returncode == 0


def test_type_stub_says_what_the_messages_have() -> None:
    stub = Path(cri_pb2.__file__).with_suffix(".pyi")
    stubbed = {
        node.name: {
            item.target.id
            for item in node.body
            if isinstance(item, ast.AnnAssign) and isinstance(item.target, ast.Name)
        }
        for node in ast.parse(stub.read_text(encoding="utf-8")).body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    messages = cri_pb2.DESCRIPTOR.message_types_by_name  # type: ignore[attr-defined]  # the stub leaves it out
    assert stubbed == {name: set(message.fields_by_name) for name, message in messages.items()}
