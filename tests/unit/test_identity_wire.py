# SPDX-License-Identifier: Apache-2.0
"""The wire format against the protobuf library: whatever it writes is read the same, whatever is written it reads."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.identity.wire import nested, read_message, read_numbers, read_text, text_map, write_bytes, write_text
from tests.fakes import cri_pb2

TEXTS = st.text(st.characters(codec="utf-8"), max_size=300)
LABELS = st.dictionaries(TEXTS, TEXTS, max_size=8)


@given(TEXTS, LABELS)
def test_a_container_status_is_read_as_the_library_wrote_it(container_id: str, labels: dict[str, str]) -> None:
    status = cri_pb2.ContainerStatus(id=container_id, labels=labels)
    answer = read_message(cri_pb2.ContainerStatusResponse(status=status).SerializeToString())
    assert read_text(nested(answer, 1), 1) == container_id
    assert text_map(nested(answer, 1), 12) == labels


@given(st.lists(st.tuples(TEXTS, TEXTS, LABELS), max_size=4))
def test_a_list_of_sandboxes_is_read_as_the_library_wrote_it(pods: list[tuple[str, str, dict[str, str]]]) -> None:
    items = [
        cri_pb2.PodSandbox(id=one, metadata=cri_pb2.PodSandboxMetadata(uid=uid), labels=labels)
        for one, uid, labels in pods
    ]
    answer = read_message(cri_pb2.ListPodSandboxResponse(items=items).SerializeToString())
    read = [read_message(item) for item in answer.get(1, ())]
    assert [(read_text(m, 1), read_text(nested(m, 2), 2), text_map(m, 5)) for m in read] == pods


@given(TEXTS, TEXTS)
def test_a_selector_is_read_by_the_library_as_it_was_meant(key: str, value: str) -> None:
    selector = write_bytes(3, write_text(1, key) + write_text(2, value))
    request = cri_pb2.ListPodSandboxRequest.FromString(write_bytes(1, selector))
    assert dict(request.filter.label_selector) == {key: value}


@given(st.integers(0, 2**31 - 1), st.integers(0, 2**63 - 1), TEXTS)
def test_numbers_are_read_as_the_library_wrote_them(state: int, created_at: int, sandbox_id: str) -> None:
    data = cri_pb2.PodSandbox(id=sandbox_id, state=state, created_at=created_at).SerializeToString()
    numbers = read_numbers(data)
    assert (numbers.get(3, 0), numbers.get(4, 0)) == (state, created_at)
    assert read_text(read_message(data), 1) == sandbox_id


def test_numbers_and_unknown_fields_are_skipped() -> None:
    data = bytes([2 << 3, 0x96, 1]) + bytes([3 << 3 | 1]) + bytes(8) + bytes([4 << 3 | 5]) + bytes(4)
    assert read_text(read_message(data + write_text(9, "kept")), 9) == "kept"


@pytest.mark.parametrize("data", [b"\x0a", b"\x0a\x05ab", b"\x80", b"\x0b", b"\x09\x00", b"\xff" * 11 + b"\x01"])
def test_what_is_malformed_is_refused(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"cut short|wire type|ten bytes"):
        read_message(data)


@given(st.binary(max_size=400))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    try:
        message = read_message(data)
    except ValueError:
        return
    assert all(isinstance(read_text(message, number), str) for number in message)
