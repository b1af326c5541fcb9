# SPDX-License-Identifier: Apache-2.0
"""TOML that is made to cost: what no file of settings, drivers or prices needs is refused before it is parsed."""

from __future__ import annotations

import time
from decimal import Decimal
from pathlib import Path

import pytest

from kubenpu.cli.prices import read_prices
from kubenpu.config.toml_file import read_toml
from kubenpu.devices.tables import load_tables
from kubenpu.model.errors import ConfigError
from kubenpu.model.toml import MAX_DEPTH, MAX_DOTS, parse_toml

HOSTILE = {
    "a key of many parts": ".".join(["a"] * 20_000) + " = 1",
    "a heading of many parts": f"[{'.'.join(['a'] * 20_000)}]",
    "parts in quotes": '"a" . ' * 20_000 + "a = 1",
    "lists in lists": "a = " + "[" * 20_000,
    "tables in tables": "a = " + "{a = " * 20_000,
    "both, that end": "a = " + "[{a = " * 40 + "1" + "}]" * 40,
    "many lines, each a part of the depth": "a = " + f"[{{{'a.' * 100}a =\n" * 50 + "1" + "}]" * 50,
    "a large number": f"a = 0x{'f' * 500_000}\nb = {'9' * 9000}",
}


@pytest.mark.parametrize("text", HOSTILE.values(), ids=HOSTILE)
def test_what_is_refused_costs_nothing(text: str, tmp_path: Path) -> None:
    path = tmp_path / "x.toml"
    path.write_text(text)
    begin = time.process_time()
    with pytest.raises(ValueError):
        parse_toml(text)
    with pytest.raises(ConfigError, match=str(path)):
        read_toml(path)
    with pytest.raises(ConfigError, match=str(path)):
        read_prices(path)
    (error,) = load_tables(tmp_path).errors
    assert str(path) in error.cause
    assert time.process_time() - begin < 2


def test_the_line_is_told(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_text("a = 1\n" + "b" + ".b" * (MAX_DOTS + 1) + " = 1\n")
    with pytest.raises(ConfigError, match=r"x\.toml:2: not valid TOML: More than 200 dots"):
        read_toml(tmp_path / "x.toml")


def test_what_people_write_is_taken() -> None:
    assert parse_toml("a.b = 1.5", Decimal) == {"a": {"b": Decimal("1.5")}}
    deep = "a" + ".a" * (MAX_DEPTH - 2) + " = "
    assert parse_toml(f"{deep}1")
    with pytest.raises(ValueError, match="deeper"):
        parse_toml(f"{deep}[1]")
    assert parse_toml(f"a = '{'.' * MAX_DOTS}'")
