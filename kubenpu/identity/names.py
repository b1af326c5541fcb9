# SPDX-License-Identifier: Apache-2.0
"""What is kept of a name that a cluster, a container runtime or a workload chose. Its input is hostile by assumption.

Refuses nothing and raises nothing: every text becomes a name that is safe as a label value, in a log line and on a
terminal, and that is no longer than the limit.
"""

from __future__ import annotations

NAMESPACE_MAX = 63
POD_MAX = 253
CONTAINER_MAX = 63
UNIT_MAX = 255
LABEL_MAX = 63

_REPLACEMENT = "\ufffd"


def clean_name(text: str, limit: int) -> str:
    """The name with every character that is not printable replaced by U+FFFD, cut to `limit` characters.

    Not printable are control characters, line and paragraph separators, invisible and text-direction characters and
    the surrogates that stand for bytes which are no UTF-8. Letters of any script stay. The limits are those of
    Kubernetes for names (253), namespaces, containers and values of labels (63), and of the kernel for cgroups (255).
    """
    kept = text[:limit]
    if kept.isprintable():
        return kept
    return "".join(char if char.isprintable() else _REPLACEMENT for char in kept)
