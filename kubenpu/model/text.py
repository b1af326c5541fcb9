# SPDX-License-Identifier: Apache-2.0
"""How text that others chose is made printable: one way, so that a name is the same wherever it is shown.

Its input is hostile by assumption. Refuses nothing. What is not printable are control characters, line and paragraph
separators, invisible and text-direction characters and the surrogates that stand for bytes which are no UTF-8. Letters
of any script stay.
"""

from __future__ import annotations

MAX_LABEL_CHARACTERS = 512


def printable(text: str) -> str:
    """The text with every character that is not printable as an escape such as \\x1b, \\u202e or \\udcff."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else char.encode("unicode_escape").decode() for char in text)


def clean_label(text: str) -> str:
    """Printable and bounded, as every interface shows it."""
    text = printable(text)
    return text if len(text) <= MAX_LABEL_CHARACTERS else text[: MAX_LABEL_CHARACTERS - 1] + "…"
