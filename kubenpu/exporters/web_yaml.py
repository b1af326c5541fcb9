# SPDX-License-Identifier: Apache-2.0
"""Reads a YAML file key by key and knows the line of each, so that what is wrong can be pointed at.

Owns no file longer than the reading. PyYAML is imported when the first file is read, and only its parser is used: no
object is ever constructed. Refuses, with file and line, keys nobody asked for, keys that appear twice, and values of
another type than was asked for.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file

_TAG = "tag:yaml.org,2002:"
_BOOLEANS = {"yes": True, "no": False, "true": True, "false": False, "on": True, "off": False}


@dataclass(frozen=True, slots=True)
class Text:
    """A value and where it stands, as `file:line`."""

    value: str
    where: str


class Section:
    """A mapping of the file. Each key is asked for by its type; finish() refuses those that nobody asked for."""

    def __init__(self, path: Path, name: str, node: Any) -> None:
        self._path = path
        self._name = name
        self.where = f"{path}:{node.start_mark.line + 1}"
        self._asked: set[str] = set()
        self._nodes: dict[str, tuple[str, Any]] = {}
        if node.id != "mapping":
            raise ConfigError(f"{self.where}: {name or 'the file'} has to consist of keys and values")
        for key, value in node.value:
            where = f"{path}:{key.start_mark.line + 1}"
            if key.id != "scalar":
                raise ConfigError(f"{where}: this is no key")
            if key.value in self._nodes:
                raise ConfigError(f"{where}: {key.value!r} appears twice")
            self._nodes[key.value] = (where, value)

    def keys(self) -> list[str]:
        return list(self._nodes)

    def where_is(self, key: str) -> str:
        """`file:line` of a key, of the section when it has none."""
        return self._nodes[key][0] if key in self._nodes else self.where

    def section(self, key: str) -> Section | None:
        found = self._take(key)
        return None if found is None else Section(self._path, self._full(key), found[1])

    def text(self, key: str) -> Text | None:
        found = self._take(key)
        return None if found is None else self._scalar(key, *found)

    def texts(self, key: str) -> tuple[Text, ...]:
        found = self._take(key)
        if found is None:
            return ()
        where, node = found
        if node.id != "sequence":
            raise ConfigError(f"{where}: {self._full(key)} has to be a list")
        return tuple(self._scalar(key, f"{self._path}:{n.start_mark.line + 1}", n) for n in node.value)

    def boolean(self, key: str) -> bool | None:
        found = self._take(key)
        if found is None:
            return None
        where, node = found
        if node.id != "scalar" or node.tag != _TAG + "bool" or node.value.lower() not in _BOOLEANS:
            raise ConfigError(f"{where}: {self._full(key)} has to be true or false")
        return _BOOLEANS[node.value.lower()]

    def finish(self) -> None:
        """Raises ConfigError for the first key that means nothing here."""
        for key, (where, _) in self._nodes.items():
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, n=1)
                place = f"in {self._name}" if self._name else "here"
                hint = f"Perhaps {near[0]} is meant" if near else f"Known {place}: {', '.join(sorted(self._asked))}"
                raise ConfigError(f"{where}: unknown key {key[:80]!r} {place}", hint)

    def _take(self, key: str) -> tuple[str, Any] | None:
        self._asked.add(key)
        return self._nodes.get(key)

    def _full(self, key: str) -> str:
        return f"{self._name}.{key}" if self._name else key

    def _scalar(self, key: str, where: str, node: Any) -> Text:
        if node.id != "scalar" or node.tag == _TAG + "null" or not node.value.isprintable():
            raise ConfigError(f"{where}: {self._full(key)} has to be text in one line")
        return Text(node.value, where)


def read_yaml(path: Path) -> Section:
    """The whole file. Raises ConfigError with file and line; a file that says nothing is an error too."""
    try:
        content = read_regular_file(path)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Name another file, or make it readable") from error
    node = _compose(path, content)
    if node is None or node.value == []:
        raise ConfigError(f"{path}:1: nothing is configured", "Take the setting away if that is what you want")
    return Section(path, "", node)


def _compose(path: Path, content: bytes) -> Any:
    yaml = _load_library(path)
    try:
        return yaml.compose(content.decode(), Loader=yaml.SafeLoader)
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ConfigError(f"{path}:{line}: not UTF-8") from error
    except (yaml.YAMLError, RecursionError) as error:
        mark = getattr(error, "problem_mark", None)
        place = f"{path}:{mark.line + 1}" if mark is not None else str(path)
        problem = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise ConfigError(f"{place}: not valid YAML: {problem}") from error


def _load_library(path: Path) -> Any:
    try:
        return importlib.import_module("yaml")
    except ImportError as error:
        raise ConfigError(f"reading {path} needs PyYAML", "Install the package python3-yaml") from error


def one_of(text: Text, name: str, known: Collection[str]) -> str:
    """The text if it is known, else ConfigError."""
    if text.value not in known:
        raise ConfigError(f"{text.where}: {name} cannot be {text.value[:80]!r}", f"Known: {', '.join(known)}")
    return text.value
