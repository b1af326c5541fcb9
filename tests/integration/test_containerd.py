# SPDX-License-Identifier: Apache-2.0
"""Images of nerdctl's containers: asked over a real socket of what answers as containerd does, badly or never."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc
import pytest

from kubenpu.identity import containerd
from kubenpu.identity.cgroup import parse_path
from kubenpu.identity.containers import Containers, PlainContainer
from kubenpu.identity.wire import write_bytes, write_text

ID, IMAGE = "7e" * 32, "docker.io/library/train:1"
KNOWN = write_bytes(1, write_text(1, ID) + write_text(3, IMAGE))


@contextmanager
def serving(
    root: Path, answer: Callable[[bytes, Any], bytes], socket: str = "run/containerd/containerd.sock"
) -> Iterator[None]:
    (root / socket).parent.mkdir(parents=True)
    server = grpc.server(ThreadPoolExecutor(max_workers=1))
    handler = grpc.unary_unary_rpc_method_handler(answer)
    service = grpc.method_handlers_generic_handler("containerd.services.containers.v1.Containers", {"Get": handler})
    server.add_generic_rpc_handlers((service,))
    server.add_insecure_port(f"unix:{root / socket}")
    server.start()
    try:
        yield
    finally:
        server.stop(grace=None).wait()


def find(root: Path) -> PlainContainer | None:
    return Containers(root).find(parse_path(f"/system.slice/nerdctl-{ID}.scope"))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    name = tmp_path / "var/lib/nerdctl/1935db59/names/farm/train"
    name.parent.mkdir(parents=True)
    name.write_text(ID)
    return tmp_path


def only_here(request: bytes, context: Any) -> bytes:
    asked = dict(context.invocation_metadata()).get("containerd-namespace")
    if (request, asked) != (write_text(1, ID), "farm"):
        context.abort(grpc.StatusCode.NOT_FOUND, "not found")
    return KNOWN


def test_the_image_is_the_one_of_its_namespace(root: Path) -> None:
    with serving(root, only_here):
        assert find(root) == PlainContainer("nerdctl:train", IMAGE)


def test_another_address_that_nerdctl_is_set_to(root: Path) -> None:
    settings = root / "etc/nerdctl/nerdctl.toml"
    settings.parent.mkdir(parents=True)
    settings.write_text('address = "unix:///run/k3s/containerd.sock"\n')
    with serving(root, only_here, "run/k3s/containerd.sock"):
        assert find(root) == PlainContainer("nerdctl:train", IMAGE)


@pytest.mark.parametrize("answer", [b"", b"\xff\xff", b"\x0a\x7f"])
def test_an_answer_that_is_none_leaves_the_name(root: Path, answer: bytes) -> None:
    with serving(root, lambda _request, _context: answer):
        assert find(root) == PlainContainer("nerdctl:train", "")


def test_nobody_is_waited_for(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert find(root) == PlainContainer("nerdctl:train", "")
    monkeypatch.setattr(containerd, "ASK_SECONDS", 0.2)

    answers = threading.Event()

    def late(_request: bytes, _context: Any) -> bytes:
        assert answers.wait(60)
        return KNOWN

    begin = time.monotonic()
    with serving(root, late):
        assert find(root) == PlainContainer("nerdctl:train", "")
        assert time.monotonic() - begin < 20
        answers.set()
