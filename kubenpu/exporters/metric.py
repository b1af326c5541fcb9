# SPDX-License-Identifier: Apache-2.0
"""What a metric is, for the tables of metrics, and what all of them are read off. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass

from kubenpu.model.device import VisibilityOf
from kubenpu.model.sample import OFF
from kubenpu.model.view import View

CELLS = "kernel: counter cells"
WorkOf = Callable[[str | None], str | None]


@dataclass(frozen=True, slots=True)
class Scrape:
    """What one rendering works on. `submit_vendors`: drivers whose submissions pass an ioctl at least partly; `work_of`
    tells in what those of a driver say how much they hand over."""

    view: View
    submit_vendors: frozenset[str]
    visibility: VisibilityOf
    loss_reasons: tuple[str, ...] = ()
    work_of: WorkOf = lambda vendor: None

    @property
    def counting(self) -> bool:
        return any(hook.mechanism != OFF for hook in self.view.hooks)


@dataclass(frozen=True, slots=True)
class Point:
    """One series, its label values as they came."""

    labels: tuple[str, ...]
    value: float


@dataclass(frozen=True, slots=True)
class Metric:
    """One family. `name` is the sample's name, `unit` of the value, `source` where the number comes from."""

    name: str
    type: str
    labels: tuple[str, ...]
    help: str
    unit: str
    source: str
    points: Callable[[Scrape], Iterable[Point]]
