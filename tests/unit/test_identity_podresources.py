# SPDX-License-Identifier: Apache-2.0
"""What is read of a kubelet's answer, compared with the protobuf library, and answers that are none."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.identity.podresources import ID_MAX, MAX_CLAIMED, MAX_CONTAINERS, parse_listing
from kubenpu.model.allocation import Claimed, Listing
from tests.fakes import podresources_pb2 as pb2

TEXT = st.text(alphabet="abcxyz09.-/", max_size=8)
PLUGINS = st.lists(
    st.builds(lambda name, ids: pb2.ContainerDevices(resource_name=name, device_ids=ids), TEXT, st.lists(TEXT)),
    max_size=3,
)


def answer(*containers: pb2.ContainerResources, pod: str = "train-0", namespace: str = "ml") -> bytes:
    resources = pb2.PodResources(name=pod, namespace=namespace, containers=containers)
    return pb2.ListPodResourcesResponse(pod_resources=[resources]).SerializeToString()


def test_device_plugins_and_claims() -> None:
    topology = pb2.TopologyInfo(nodes=[pb2.NUMANode(ID=3)])
    worker = pb2.ContainerResources(
        name="worker",
        devices=[pb2.ContainerDevices(resource_name="amd.com/gpu", device_ids=["a", "b", "a"], topology=topology)],
        cpu_ids=[1, 2, 300],
        dynamic_resources=[
            pb2.DynamicResource(
                claim_name="two",
                claim_namespace="ml",
                claim_resources=[
                    pb2.ClaimResource(
                        driver_name="gpu.x", pool_name="n1", device_name="g0", cdi_devices=[pb2.CDIDevice(name="x/g=0")]
                    ),
                    pb2.ClaimResource(driver_name="gpu.x", pool_name="n1", device_name="g1"),
                ],
            )
        ],
    )
    place = ("ml", "train-0", "worker")
    assert parse_listing(answer(worker, pb2.ContainerResources(name="log"))) == Listing(
        (
            Claimed(*place, "amd.com/gpu", "a", "", ("a",)),
            Claimed(*place, "amd.com/gpu", "b", "", ("b",)),
            Claimed(*place, "gpu.x", "n1/g0", "ml/two", ("g0", "x/g=0")),
            Claimed(*place, "gpu.x", "n1/g1", "ml/two", ("g1",)),
        ),
        frozenset({"ml/train-0/worker", "ml/train-0/log"}),
    )


def test_a_kubelet_that_tells_nothing_of_a_claim_but_its_cdi_names() -> None:
    claim = pb2.DynamicResource(
        claim_name="c",
        claim_namespace="ml",
        claim_resources=[pb2.ClaimResource(cdi_devices=[pb2.CDIDevice(name="x.com/gpu=card0")])],
    )
    (found,) = parse_listing(answer(pb2.ContainerResources(name="w", dynamic_resources=[claim]))).claimed
    assert found[3:] == ("x.com/gpu", "x.com/gpu=card0", "ml/c", ("x.com/gpu=card0",))


@given(st.lists(st.tuples(TEXT, TEXT, TEXT, PLUGINS), max_size=4))
def test_every_device_of_every_container_once(pods: list[tuple[str, str, str, list[pb2.ContainerDevices]]]) -> None:
    message = pb2.ListPodResourcesResponse(
        pod_resources=[
            pb2.PodResources(name=pod, namespace=space, containers=[pb2.ContainerResources(name=name, devices=devices)])
            for space, pod, name, devices in pods
        ]
    )
    listing = parse_listing(message.SerializeToString())
    wanted = {
        (space, pod, name, each.resource_name, one)
        for space, pod, name, devices in pods
        for each in devices
        for one in each.device_ids
    }
    assert {each[:5] for each in listing.claimed} == wanted
    assert len(listing.claimed) == len(wanted)
    assert listing.containers == {f"{space}/{pod}/{name}" for space, pod, name, _ in pods}


def test_hostile_names_are_cleaned_and_cut() -> None:
    devices = [pb2.ContainerDevices(resource_name="r\n" + "x" * 999, device_ids=["\x1b[2J", "\u202e"])]
    data = answer(pb2.ContainerResources(name="c\0", devices=devices), pod="p\n", namespace="n" * 999)
    first, second = parse_listing(data).claimed
    assert first[:3] == ("n" * 63, r"p\n", r"c\x00")
    assert first.resource == "r\\n" + "x" * (ID_MAX - 2)
    assert (first.device_id, second.device_id) == (r"\x1b[2J", r"\u202e")


def test_bytes_that_are_no_text_are_read_as_something() -> None:
    data = answer(pb2.ContainerResources(name="mark")).replace(b"mark", b"\xff\xfe\xfd\xfc")
    (name,) = parse_listing(data).containers
    assert name == "ml/train-0/" + "\ufffd" * 4


def test_too_many_devices_are_refused() -> None:
    def listing(count: int) -> Listing:
        devices = pb2.ContainerDevices(resource_name="r", device_ids=map(str, range(count)))
        return parse_listing(answer(pb2.ContainerResources(name="c", devices=[devices])))

    assert len(listing(MAX_CLAIMED).claimed) == MAX_CLAIMED
    with pytest.raises(ValueError, match=f"more than {MAX_CLAIMED}"):
        listing(MAX_CLAIMED + 1)


def test_too_many_containers_are_refused() -> None:
    def listing(count: int) -> Listing:
        return parse_listing(answer(*(pb2.ContainerResources(name=str(n)) for n in range(count))))

    assert len(listing(MAX_CONTAINERS).containers) == MAX_CONTAINERS
    with pytest.raises(ValueError, match=f"more than {MAX_CONTAINERS}"):
        listing(MAX_CONTAINERS + 1)


@given(st.binary(max_size=200))
def test_garbage_is_a_value_error_or_an_answer(data: bytes) -> None:
    try:
        parse_listing(data)
    except ValueError as error:
        assert str(error)


def test_nothing_is_an_answer() -> None:
    assert parse_listing(b"") == Listing((), frozenset())


def test_type_stub_says_what_the_messages_have() -> None:
    stub = ast.parse(Path(pb2.__file__).with_suffix(".pyi").read_text(encoding="utf-8"))
    stubbed = {
        node.name: {ast.unparse(item.target) for item in node.body if isinstance(item, ast.AnnAssign)}
        for node in stub.body
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    }
    messages = pb2.DESCRIPTOR.message_types_by_name  # type: ignore[attr-defined]  # the stub leaves it out
    assert stubbed == {name: set(message.fields_by_name) for name, message in messages.items()}
