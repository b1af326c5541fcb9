# SPDX-License-Identifier: Apache-2.0
"""Plain containers: state files as real engines wrote them, files that are cut, hostile, huge, missing or forbidden."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.identity.cgroup import parse_path
from kubenpu.identity.containers import MAX_STATE_BYTES, Containers, PlainContainer
from kubenpu.model.errors import SourceError

FIXTURES = Path(__file__).parents[1] / "fixtures" / "containers"
DOCKER, PODMAN = (FIXTURES / "docker-20.10.json").read_text(), (FIXTURES / "podman-4.3.json").read_text()
DOCKER_ID = json.loads(DOCKER)["ID"]
PODMAN_ID, PODMAN_RM_ID = (entry["id"] for entry in json.loads(PODMAN))
A = "a" * 64
DOCKER_DATA, PODMAN_DATA = "var/lib/docker", "var/lib/containers/storage"
TRAIN = PlainContainer("docker:train", "local/bb:1")


def write(root: Path, path: str, text: str) -> Path:
    target = root / path
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_text(text, encoding="utf-8")
    return target


def write_docker(root: Path, text: str = DOCKER, data: str = DOCKER_DATA) -> Path:
    return write(root, f"{data}/containers/{DOCKER_ID}/config.v2.json", text)


def find(root: Path, path: str) -> PlainContainer | None:
    try:
        return Containers(root).find(parse_path(path))
    except SourceError:
        return None


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/docker-{DOCKER_ID}.scope",
        f"/system.slice/docker-{DOCKER_ID}.scope/init.scope",
        f"/docker/{DOCKER_ID}",
        f"/docker/{DOCKER_ID}/docker/{A}",
        f"/myparent/{DOCKER_ID}",
        f"/nomad.slice/share.slice/docker-{DOCKER_ID}.scope",
        f"/system.slice:docker:{DOCKER_ID}",
    ],
)
def test_docker(tmp_path: Path, path: str) -> None:
    write_docker(tmp_path)
    assert find(tmp_path, path) == TRAIN


@pytest.mark.parametrize(
    "path",
    [
        f"/system.slice/libpod-{DOCKER_ID}.scope",  # another engine's
        f"/system.slice/mine.service/docker-{DOCKER_ID}.scope",
        f"/user.slice/user-1000.slice/user@1000.service/user.slice/docker-{DOCKER_ID}.scope",
        f"/lxc/201/ns/system.slice/docker-{DOCKER_ID}.scope",
        f"/docker/{A}/docker/{DOCKER_ID}",
        f"/slurm/uid_1/job_2/docker-{DOCKER_ID}.scope",
        f"/machine.slice/machine-x.scope/payload/docker-{DOCKER_ID}.scope",
        f"/kubepods/pod0a/{DOCKER_ID}",
        "/system.slice/docker.service",
    ],
)
def test_nobody_gets_the_name_of_a_container_that_is_elsewhere(tmp_path: Path, path: str) -> None:
    write_docker(tmp_path)
    assert find(tmp_path, path) is None


@pytest.mark.parametrize(
    "settings", ['{"data-root": "/big/docker"}', '{"data-root": "/nowhere"}', "{", '{"data-root": 7}']
)
def test_docker_is_asked_where_it_keeps_its_data(tmp_path: Path, settings: str) -> None:
    write(tmp_path, "etc/docker/daemon.json", settings)
    write_docker(tmp_path, data="big/docker" if "big" in settings else DOCKER_DATA)
    assert find(tmp_path, f"/docker/{DOCKER_ID}") == TRAIN


def test_docker_with_remapped_users(tmp_path: Path) -> None:
    write_docker(tmp_path, data=f"{DOCKER_DATA}/100000.100000")
    assert find(tmp_path, f"/docker/{DOCKER_ID}") == TRAIN


@pytest.mark.parametrize(
    ("settings", "place"),
    [
        ("", f"{PODMAN_DATA}/overlay-containers/containers.json"),
        ("", f"{PODMAN_DATA}/vfs-containers/volatile-containers.json"),
        ("", "run/containers/storage/overlay-containers/volatile-containers.json"),
        ('[storage]\ngraphroot = "/big/podman"\n', "big/podman/overlay-containers/containers.json"),
        ("[storage\n", f"{PODMAN_DATA}/overlay-containers/containers.json"),
    ],
)
def test_podman(tmp_path: Path, settings: str, place: str) -> None:
    write(tmp_path, "etc/containers/storage.conf", settings)
    write(tmp_path, place, PODMAN)
    for path, name in ((f"libpod-{PODMAN_ID}.scope/container", "train"), (f"libpod-{PODMAN_RM_ID}.scope", "vol")):
        assert find(tmp_path, f"/machine.slice/{path}") == PlainContainer(f"podman:{name}", "localhost/bb:1")
    assert find(tmp_path, f"/machine.slice/libpod-{A}.scope") is None


def test_podman_without_image(tmp_path: Path) -> None:
    entries = [{"id": PODMAN_ID, "names": ["x"], "metadata": text} for text in ("{", "[]", '{"image-name": 7}', 7)]
    for entry in entries:
        write(tmp_path, f"{PODMAN_DATA}/overlay-containers/containers.json", json.dumps([7, {"id": 7}, entry]))
        assert find(tmp_path, f"/machine.slice/libpod-{PODMAN_ID}.scope") == PlainContainer("podman:x", "")


@pytest.mark.parametrize("path", [f"/system.slice/nerdctl-{A}.scope", f"/default/{A}"])
def test_nerdctl(tmp_path: Path, path: str) -> None:
    write(tmp_path, "etc/nerdctl/nerdctl.toml", 'data_root = "/big/nerdctl"\n')
    write(tmp_path, "big/nerdctl/1935db59/names/default/other", "b" * 64)
    write(tmp_path, "big/nerdctl/1935db59/names/team/train", A)
    assert find(tmp_path, path) == PlainContainer("nerdctl:train", "")


def test_what_was_found_once_is_not_looked_for_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """But what is remembered is bounded."""
    monkeypatch.setattr("kubenpu.identity.containers.REMEMBERED", 4)
    containers, file = Containers(tmp_path), write_docker(tmp_path)
    assert containers.find(parse_path(f"/docker/{DOCKER_ID}")) == TRAIN
    file.unlink()
    assert containers.find(parse_path(f"/docker/{DOCKER_ID}/later")) == TRAIN
    for number in range(4):
        write(tmp_path, "var/lib/nerdctl/x/names/default/n", f"{number:064x}")
        assert containers.find(parse_path(f"/default/{number:064x}")) is not None
    assert containers.find(parse_path(f"/docker/{DOCKER_ID}")) is None


def test_trouble_is_told_and_ends(tmp_path: Path) -> None:
    containers, file = Containers(tmp_path), write_docker(tmp_path, "{")
    assert containers.trouble is None
    assert containers.find(parse_path("/system.slice/ssh.service")) is None
    assert containers.trouble is None
    with pytest.raises(SourceError, match=re.escape(str(file))):
        containers.find(parse_path(f"/docker/{DOCKER_ID}"))
    assert str(file) in (containers.trouble or "")
    assert containers.find(parse_path(f"/docker/{A}")) is None
    assert containers.trouble == ""


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{",
        "[]",
        "null",
        "7",
        '{"ID": 7}',
        DOCKER[:500],
        DOCKER.replace(DOCKER_ID, A),
        DOCKER.replace('"/train"', "7"),
        DOCKER.replace('"/train"', '"/"'),
        DOCKER.replace('"local/bb:1"', "null"),
        "[" * 100_000,
        DOCKER + " " * MAX_STATE_BYTES,
    ],
    ids=range(13),
)
def test_file_that_docker_did_not_write(tmp_path: Path, text: str) -> None:
    write_docker(tmp_path, text)
    assert find(tmp_path, f"/docker/{DOCKER_ID}") is None
    write(tmp_path, f"{PODMAN_DATA}/overlay-containers/containers.json", text)
    assert find(tmp_path, f"/machine.slice/libpod-{PODMAN_ID}.scope") is None


def test_pipe_or_directory_in_place_of_a_file_is_no_wait(tmp_path: Path) -> None:
    file = write_docker(tmp_path)
    file.unlink()
    os.mkfifo(file)
    assert find(tmp_path, f"/docker/{DOCKER_ID}") is None
    file.unlink()
    file.mkdir()
    assert find(tmp_path, f"/docker/{DOCKER_ID}") is None


def test_state_that_may_not_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, _most: int) -> bytes:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr("kubenpu.identity.containers.read_regular_file", refuse)
    with pytest.raises(SourceError, match="Permission denied"):
        Containers(tmp_path).find(parse_path(f"/docker/{DOCKER_ID}"))


@pytest.mark.parametrize("data", ["/a\\u0000b", "/\\ud800"])
def test_settings_that_name_no_place_are_none(tmp_path: Path, data: str) -> None:
    write_docker(tmp_path)
    write(tmp_path, "etc/docker/daemon.json", f'{{"data-root": "{data}"}}')
    assert find(tmp_path, f"/docker/{DOCKER_ID}") == TRAIN


@pytest.mark.parametrize(
    ("name", "unit"),
    [
        ("/a\x1b[2J\u202e\n", r"docker:a\x1b[2J\u202e\n"),
        ("/" + "x" * 400, "docker:" + "x" * 248),
    ],
)
def test_hostile_names(tmp_path: Path, name: str, unit: str) -> None:
    document = json.loads(DOCKER) | {"Name": name}
    document["Config"]["Image"] = name
    write_docker(tmp_path, json.dumps(document))
    found = find(tmp_path, f"/docker/{DOCKER_ID}")
    assert found is not None
    assert found.unit == unit
    assert found.image.isprintable()


JSON = st.recursive(
    st.none() | st.integers() | st.text(max_size=5) | st.just(PODMAN_ID),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(st.sampled_from(("id", "names", "metadata", "ID", "Name", "Config")), inner, max_size=3)
    ),
    max_leaves=8,
)


@given(JSON)
def test_any_document_is_an_answer_or_trouble(tmp_path_factory: pytest.TempPathFactory, document: object) -> None:
    root = tmp_path_factory.getbasetemp() / "any"
    write(root, f"{PODMAN_DATA}/overlay-containers/containers.json", json.dumps(document))
    write(root, f"{DOCKER_DATA}/containers/{PODMAN_ID}/config.v2.json", json.dumps(document))
    for path in (f"/docker/{PODMAN_ID}", f"/libpod_parent/libpod-{PODMAN_ID}"):
        found = find(root, path)
        assert found is None or found.unit.isprintable()
