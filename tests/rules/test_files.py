# SPDX-License-Identifier: Apache-2.0
"""Rules for files of every language: place, licence line, licence texts, no notes to self."""

from __future__ import annotations

import fnmatch
import re
from pathlib import Path

import pytest

from kubenpu import __version__
from tests.rules.tree import DIRECTORIES, FILES, ROOT, all_files, shown

APACHE, GPL = "Apache-2.0", "GPL-2.0-only"
KERNEL_CODE = ("bpf", "tests/vm/module")
# Text for people, data, pictures, expected output, texts of licences and forms of Debian carry no licence line, nor do
# empty files.
WITHOUT_LINE = (".md", ".json", ".png", ".txt", ".gitignore", "LICENSE", "changelog", "copyright", "source/format")
GOLDEN = ROOT / "tests/golden"
SOURCES = [
    path
    for path in all_files()
    if path.stat().st_size and not str(path).endswith(WITHOUT_LINE) and not path.is_relative_to(GOLDEN)
]
# In two parts: this file is searched too.
NOTES_TO_SELF = re.compile(r"\b(?:TO" + r"DO|FIX" + r"ME|X" + r"XX)\b")


def licence_of(path: Path) -> str:
    """What runs in the kernel is GPL-2.0-only, all else Apache-2.0."""
    return GPL if any(path.is_relative_to(ROOT / place) for place in KERNEL_CODE) or ".bpf." in path.name else APACHE


@pytest.mark.parametrize("path", SOURCES, ids=shown)
def test_first_line_names_the_licence(path: Path) -> None:
    lines = path.read_text().splitlines()
    first = lines[1] if lines[0].startswith("#!") else lines[0]
    assert re.fullmatch(
        rf"(?:#|//|/\*|<!--|\.\.) SPDX-License-Identifier: {re.escape(licence_of(path))}(?: \*/| -->)?", first
    )


def test_licence_texts() -> None:
    assert "Apache License" in (ROOT / "LICENSE").read_text()
    assert "Version 2, June 1991" in (ROOT / "bpf/LICENSE").read_text()


def test_top_level_is_fixed() -> None:
    """New things go into the directories there are; what is made is named in .gitignore."""
    ignored = [line.strip("/") for line in (ROOT / ".gitignore").read_text().splitlines()]
    found = {path.name for path in ROOT.iterdir() if not any(fnmatch.fnmatch(path.name, each) for each in ignored)}
    assert found - {".git", *DIRECTORIES} == set(FILES)


def test_no_notes_to_self() -> None:
    """What is not done is an issue, not a comment."""
    texts = [(path, path.read_text()) for path in all_files() if path.suffix not in {".json", ".png"}]
    assert [shown(path) for path, text in texts if NOTES_TO_SELF.search(text)] == []


def test_news_tells_of_this_version() -> None:
    headings = re.findall(r"^## (\S+)", (ROOT / "NEWS.md").read_text(), re.M)
    assert headings[0] == __version__
