# SPDX-License-Identifier: Apache-2.0
"""CRI over real gRPC and real sockets: answers, absences, runtimes that are slow, silent, wrong or being restarted."""

from __future__ import annotations

import ast
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import grpc
import pytest

from kubenpu.identity.cri import (
    BACKOFF_FIRST_S,
    BACKOFF_MAX_S,
    SEARCH_EVERY_S,
    ContainerInfo,
    CriClient,
    Runtimes,
    RuntimeVersion,
    SandboxInfo,
    backoff_s,
    find_sockets,
)
from kubenpu.identity.resolve import Resolver
from kubenpu.model.errors import SourceError
from kubenpu.model.identity import OwnerKind
from tests.fakes import cri_pb2
from tests.fakes.cri_server import FakeCri, FakePod, silent_socket

A, BOX = "a" * 64, "c" * 64
UID = "11111111-2222-3333-4444-555555555555"
PATH = f"/kubepods/burstable/pod{UID}/{A}"
SHORT_S = 0.3
PATIENCE_S = 10.0
EMPTY_SETTINGS = bytes(3) + b"\x04" + bytes(5)  # of HTTP/2: the server is ready


class Clock:
    """Time that passes only when told to."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


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


def until(condition: Callable[[], bool]) -> None:
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "the condition was never met"


def seconds_of(action: Callable[[], object]) -> float:
    started = time.monotonic()
    action()
    return time.monotonic() - started


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
        with pytest.raises(SourceError):
            asking.result(PATIENCE_S)
        client.close()
    assert b"wire.sock" not in sent


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
    server.pods[0].annotations = {"example.com/cost": "7" * 100, "both": "annotation"}
    keys = ["team", "both", "example.com/cost", "none"]
    wanted = {"team": r"blue\u202e", "both": "label", "example.com/cost": "7" * 63}
    assert client.pod_labels(UID, keys) == wanted
    assert client.pod_labels("other", keys) is None


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
        (grpc.StatusCode.UNIMPLEMENTED, "unknown service runtime.v1.RuntimeService"),
    ],
)
def test_errors_that_mean_absent(server: FakeCri, client: CriClient, code: grpc.StatusCode, text: str) -> None:
    server.error = (code, text)
    assert client.container(A) is None


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
