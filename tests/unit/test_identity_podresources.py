# SPDX-License-Identifier: Apache-2.0
"""What is read of a kubelet's answer, compared with the protobuf library, and answers that are none."""

from __future__ import annotations

import ast
import tracemalloc
from collections.abc import Iterable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.identity.podresources import (
    ID_MAX,
    MAX_CDI_NAMES,
    MAX_CLAIMED,
    MAX_CONTAINERS,
    MAX_OF_CONTAINER,
    parse_listing,
)
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


def holder(name: str, *resources: Iterable[str]) -> pb2.ContainerResources:
    devices = [pb2.ContainerDevices(resource_name=f"r{n}", device_ids=ids) for n, ids in enumerate(resources)]
    return pb2.ContainerResources(name=name, devices=devices)


def ids_of(listing: Listing, container: str) -> list[str]:
    return [each.device_id for each in listing.claimed if each.container == container]


def test_a_container_with_too_many_devices_takes_nothing_from_others() -> None:
    """A plugin that shares a GPU has an id for each MiB of its memory. Every GPU stays known, wherever its ids are."""
    shared = [f"{gpu}-_-{n}" for gpu in ("GPU-a", "GPU-b", "GPU-c") for n in range(5000)]
    listing = parse_listing(answer(holder("mem", shared), holder("w", ["card0"])))
    kept = ids_of(listing, "mem")
    assert len(kept) == len(set(kept)) == MAX_OF_CONTAINER
    assert {each.partition("-_-")[0] for each in kept} == {"GPU-a", "GPU-b", "GPU-c"}
    assert ids_of(listing, "w") == ["card0"]
    assert listing.cut == {"ml/train-0/mem"}
    assert listing.left_out == f"of ml/train-0/mem no more than {MAX_OF_CONTAINER} devices each are kept"


@pytest.mark.parametrize("name", ["{}", "{}-x", "GPU-a-{}"])
def test_as_many_as_fit_are_all_kept(name: str) -> None:
    fits = [name.format(n) for n in range(MAX_OF_CONTAINER)]
    listing = parse_listing(answer(holder("w", fits, []), holder("v", [*fits, *fits])))
    assert sorted(ids_of(listing, "w")) == sorted(ids_of(listing, "v")) == sorted(fits)
    assert (listing.cut, listing.left_out) == (frozenset(), "")
    listing = parse_listing(answer(holder("w", fits, ["one more"])))
    assert len(listing.claimed) == MAX_OF_CONTAINER
    assert listing.cut == {"ml/train-0/w"}


def test_a_kind_that_comes_last_is_kept_and_something_is_said_to_be_left_out() -> None:
    listing = parse_listing(answer(holder("w", [*(f"a{n}" for n in range(MAX_OF_CONTAINER)), "b0"])))
    assert "b0" in ids_of(listing, "w")
    assert len(listing.claimed) == MAX_OF_CONTAINER
    assert listing.cut == {"ml/train-0/w"}


def test_containers_share_what_a_node_may_have() -> None:
    many = [holder(f"c{n}", map(str, range(MAX_OF_CONTAINER))) for n in range(MAX_CLAIMED // MAX_OF_CONTAINER + 1)]
    listing = parse_listing(answer(*many, holder("w", ["card0"])))
    assert len(ids_of(listing, "c0")) == MAX_OF_CONTAINER // 2
    assert len(listing.claimed) == len(many) * MAX_OF_CONTAINER // 2 + 1 <= MAX_CLAIMED
    assert len(listing.cut) == len(many)
    assert listing.left_out.startswith(f"of ml/train-0/c0 and {len(many) - 1} more containers no more than ")
    crowd = [holder(str(n), "ab") for n in range(MAX_CLAIMED + 1)]
    assert len(parse_listing(answer(*crowd)).claimed) == len(crowd)


def test_containers_above_the_limit_are_left_out() -> None:
    def listing(count: int) -> Listing:
        return parse_listing(answer(*(pb2.ContainerResources(name=str(n)) for n in range(count))))

    assert len(listing(MAX_CONTAINERS).containers) == MAX_CONTAINERS
    assert listing(MAX_CONTAINERS).left_out == ""
    assert len(listing(MAX_CONTAINERS + 1).containers) == MAX_CONTAINERS
    assert listing(MAX_CONTAINERS + 1).left_out == f"of all containers no more than {MAX_CONTAINERS} are kept"


def test_of_the_names_of_one_device_some_are_kept() -> None:
    names = [pb2.CDIDevice(name=f"x/g={n}") for n in range(10 * MAX_CDI_NAMES)]
    resource = pb2.ClaimResource(driver_name="d", pool_name="p", device_name="g0", cdi_devices=names)
    claim = pb2.DynamicResource(claim_name="c", claim_namespace="ml", claim_resources=[resource])
    (found,) = parse_listing(answer(pb2.ContainerResources(name="w", dynamic_resources=[claim]))).claimed
    assert len(found.names) == MAX_CDI_NAMES + 1


def test_memory_is_bounded_whatever_the_answer_is() -> None:
    """As many ids as fit into 16 MiB would be a gigabyte."""
    tiny = [format(n, "x") for n in range(8000)]
    data = answer(*(holder(str(n), tiny) for n in range(4)))
    tracemalloc.start()
    parse_listing(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 3 << 20


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
