# SPDX-License-Identifier: Apache-2.0
"""Pieces of reStructuredText: text that must not be taken for markup, literals, entries of a definition list. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator


def escape(text: str) -> str:
    """The text as it stands; an address is no link."""
    return re.sub(r"([\\*`|_]|:(?=//))", r"\\\1", text)


def sentence(text: str) -> str:
    """The help text of something, which is written without capital and full stop."""
    return escape(f"{text[:1].upper()}{text[1:].rstrip('.')}.")


def literal(text: str) -> str:
    return f"``{text}``"


def indented(lines: Iterable[str]) -> Iterator[str]:
    return (f"    {line}" if line else "" for line in lines)


def definition(term: str, *paragraphs: str) -> list[str]:
    """An entry; without paragraphs there would be nothing to define."""
    body = [line for paragraph in paragraphs for line in (paragraph, "")]
    return [term, *indented(body)]
