# SPDX-License-Identifier: Apache-2.0
"""Plain containers by their id: name and image, from what docker, podman and nerdctl keep on disk.

Owns a bounded memory of what was found. Its data are state files that belong to root, as large as an operator's file
may be, read anew for every id not known yet; where they are is asked of the engines' own settings. Refuses to ask an
engine (podman's blocks while it creates a container) but for the images of nerdctl, which only containerd has; to open
what is no regular file, and to keep anything else of the files: there are passwords in them. Containers of other users
are not found: nobody but they may read their state.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import NamedTuple

from kubenpu.identity.names import IMAGE_MAX, UNIT_MAX, clean_name
from kubenpu.model.errors import SourceError
from kubenpu.model.files import read_regular_file
from kubenpu.model.identity import HostKind, PathIdentity, PathKind
from kubenpu.model.toml import parse_toml

REMEMBERED = 1024
MAX_STATE_BYTES = 4 << 20  # podman has all containers that there are in one file
NAMES_MAX = 4096
"""How many names of nerdctl are looked at for one id."""

_DOCKER_DATA = ("/var/lib/docker", "/var/snap/docker/common/var-lib-docker")
_PODMAN_DATA = ("/var/lib/containers/storage", "/run/containers/storage")
_NERDCTL_DATA = ("/var/lib/nerdctl",)
_NERDCTL_SETTINGS = ("/etc/nerdctl/nerdctl.toml",)
_CONTAINERD = "/run/containerd/containerd.sock"
_PODMAN_SETTINGS = ("/etc/containers/storage.conf", "/usr/share/containers/storage.conf")


class PlainContainer(NamedTuple):
    """`unit`: what its work is accounted to, such as `docker:train`. `image` as the engine names it, "" if unknown."""

    unit: str
    image: str


class _Engine(NamedTuple):
    """`runtime`: what a path says that belongs to this engine. `find` gives name and image."""

    name: str
    runtime: str
    find: Callable[[Path, str], tuple[str, str] | None]


class Containers:
    """`root` is where the file system begins, for tests. `trouble`: why state could not be read when somebody asked
    last, "" if it could be, None while nobody has."""

    def __init__(self, root: Path = Path("/")) -> None:
        self._root = root
        self._known: dict[str, PlainContainer] = {}
        self.trouble: str | None = None

    def find(self, claim: PathIdentity) -> PlainContainer | None:
        """The container that the work at a path is accounted to, None when that is no container or nobody's.

        A container below a user's manager, a service or another container is theirs, whatever it calls itself. Raises
        SourceError when it is not found and some state could not be read: it may have been written at that moment.
        """
        container_id = claim.container_id
        if claim.host_kind is not HostKind.CONTAINER or claim.kind is not PathKind.PLAIN_CONTAINER or not container_id:
            return None
        known = self._known.get(container_id)
        if known is not None:
            return known
        self.trouble, trouble = "", None
        for engine in _ENGINES:
            if claim.runtime in (engine.runtime, None):
                try:
                    found = engine.find(self._root, container_id)
                except SourceError as error:
                    self.trouble, trouble = str(error), error
                    continue
                if found is not None and found[0]:
                    return self._remember(container_id, engine.name, *found)
        if trouble is not None:
            raise trouble
        return None

    def _remember(self, container_id: str, engine: str, name: str, image: str) -> PlainContainer:
        if len(self._known) >= REMEMBERED:
            del self._known[next(iter(self._known))]
        found = PlainContainer(clean_name(f"{engine}:{name}", UNIT_MAX), clean_name(image, IMAGE_MAX))
        self._known[container_id] = found
        return found


def _find_docker(root: Path, container_id: str) -> tuple[str, str] | None:
    """With userns-remap all of it is in a directory named after the first user and group."""
    for data in _places(root, _setting(root, ("/etc/docker/daemon.json",), "data-root"), _DOCKER_DATA):
        for place in (data, *_glob(data, "[0-9]*.[0-9]*")):
            path = place / "containers" / container_id / "config.v2.json"
            match _read_json(path):
                case None:
                    continue
                case {"ID": str(found), "Name": str(name), "Config": {"Image": str(image)}} if found == container_id:
                    return name.removeprefix("/"), image
            raise _unusable(path)
    return None


def _find_podman(root: Path, container_id: str) -> tuple[str, str] | None:
    """Containers that go when they end are in a file of their own; which of the two places depends on a setting."""
    for data in _places(root, _setting(root, _PODMAN_SETTINGS, "storage", "graphroot"), _PODMAN_DATA):
        for path in (*_glob(data, "*-containers/containers.json"), *_glob(data, "*-containers/volatile-*.json")):
            entries = _read_json(path, container_id)
            if not isinstance(entries, list | None):
                raise _unusable(path)
            for entry in entries or ():
                match entry:
                    case {"id": str(found), "names": [str(name), *_]} if found == container_id:
                        return name, _podman_image(entry)
    return None


def _podman_image(entry: Mapping[str, object]) -> str:
    """It is in JSON within the JSON; without it the container has its name nevertheless."""
    try:
        metadata = json.loads(str(entry.get("metadata")))
    except (ValueError, RecursionError):
        return ""
    match metadata:
        case {"image-name": str(image)}:
            return image
    return ""


def _find_nerdctl(root: Path, container_id: str) -> tuple[str, str] | None:
    """A name is a file with the id in it, in a directory named as containerd's namespace."""
    wanted = container_id.encode()
    for data in _places(root, _setting(root, _NERDCTL_SETTINGS, "data_root"), _NERDCTL_DATA):
        for path in islice(_glob(data, "*/names/*/*"), NAMES_MAX):
            content = _read(path)
            if content is not None and content.strip() == wanted:
                return path.name, _nerdctl_image(root, path.parent.name, container_id)
    return None


def _nerdctl_image(root: Path, namespace: str, container_id: str) -> str:
    from kubenpu.identity.containerd import image_of  # noqa: PLC0415 - hardly any node needs it

    address = _setting(root, _NERDCTL_SETTINGS, "address").removeprefix("unix://") or _CONTAINERD
    socket = root / address.lstrip("/")
    return image_of(socket, namespace, container_id) if socket.is_socket() else ""


_ENGINES = (
    _Engine("docker", "docker", _find_docker),
    _Engine("podman", "podman", _find_podman),
    _Engine("nerdctl", "containerd", _find_nerdctl),
)


def _places(root: Path, chosen: str, usual: Sequence[str]) -> Iterator[Path]:
    for place in dict.fromkeys((chosen, *usual) if chosen.startswith("/") else usual):
        yield root / place.lstrip("/")


def _setting(root: Path, files: Sequence[str], *keys: str) -> str:
    """A text from the first of the engine's settings files that has it, "" if none has."""
    for name in files:
        try:
            content = _read(root / name.lstrip("/"))
            found: object = _parse_settings(name, content.decode()) if content is not None else None
        except (SourceError, ValueError, RecursionError):
            continue  # the engine does not run with it either, or has it elsewhere
        for key in keys:
            found = found.get(key) if isinstance(found, dict) else None
        if isinstance(found, str) and found.isprintable():  # else no name of a place
            return found
    return ""


def _parse_settings(name: str, text: str) -> object:
    return json.loads(text) if name.endswith(".json") else parse_toml(text)


def _glob(directory: Path, pattern: str) -> Iterator[Path]:
    """Path.glob leaves out what may not be looked into, and raises what else goes wrong."""
    try:
        yield from directory.glob(pattern)
    except OSError as error:
        raise SourceError(f"cannot look into {directory}: {error.strerror}") from error


def _read_json(path: Path, about: str = "") -> object:
    """None: there is no such file, or nothing of `about` in it, which is quicker to tell than what else is."""
    content = _read(path)
    try:
        return None if content is None or about.encode() not in content else json.loads(content)
    except (ValueError, RecursionError) as error:
        raise _unusable(path) from error


def _read(path: Path) -> bytes | None:
    try:
        return read_regular_file(path, MAX_STATE_BYTES)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except OSError as error:
        raise SourceError(f"cannot read {path}: {error.strerror}", "Plain containers are shown by their ids") from error


def _unusable(path: Path) -> SourceError:
    return SourceError(f"{path} is not as its engine writes it", "Plain containers are shown by their ids")
