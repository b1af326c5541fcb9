# SPDX-License-Identifier: Apache-2.0
"""Prices of a report: what a file of them may say, and files that say something else."""

from __future__ import annotations

import os
import time
from decimal import Decimal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.cli.prices import parse_prices, read_prices
from kubenpu.model.errors import ConfigError
from tests.fakes.history_rig import GPU


def test_a_pipe_of_prices_is_refused_at_once(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "prices.toml")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_prices(tmp_path / "prices.toml")


def test_a_price_of_devices_without_a_driver_table() -> None:
    prices = parse_prices(Path("p"), {"currency": "EUR", "price": {"default": 0, "driver": {"": 4}}})
    assert (prices.of("npu.0", None), list(prices.find_unused([("npu.0", None)]))) == (Decimal(4), [])
    assert list(prices.find_unused([(GPU, "xe")])) == ["driver."]


def test_prices_of_a_file(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_text('currency = "€"\n[price]\ndefault = 1.20\ndriver.xe = 0.8\ndevice."0000:00:02.0" = 2\n')
    prices = read_prices(file)
    assert prices.currency == "€"
    assert [prices.of(GPU, "xe"), prices.of("x", "xe"), prices.of("x", None)] == [2, Decimal("0.8"), Decimal("1.20")]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "currency = 'EUR'",
        "[price]\ndefault = 1",
        "currency = 'EUR'\n[price]",
        "currency = 'EUR'\n[price]\ndefault = -1",
        "currency = 'EUR'\n[price]\ndefault = nan",
        "currency = 'EUR'\n[price]\ndefault = inf",
        "currency = 'EUR'\n[price]\ndefault = 1e99",
        "currency = 'EUR'\n[price]\ndefault = true",
        "currency = 'EUR'\n[price]\ndefault = '1'",
        "currency = 'EUR'\n[price]\ndrivers.xe = 1",
        "currency = 'EUR'\n[price]\ndriver = 1",
        "currency = 'EUR'\nvat = 19\n[price]\ndefault = 1",
        "currency = 'EUR\\u001b[31m'\n[price]\ndefault = 1",
        "currency = 'EUR\n",
        "a = " + "[" * 10000,
    ],
)
def test_prices_that_are_none_are_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match="cannot be used"):
        read_prices(file)


@pytest.mark.parametrize("number", ["1e-30000000", "1e30000000", "1e-99999999999999999999", "1e-13"])
def test_exponents_without_end_are_refused_at_once(tmp_path: Path, number: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(f"currency = 'EUR'\n[price]\ndefault = {number}\n")
    begin = time.process_time()
    with pytest.raises(ConfigError, match="cannot be used"):
        read_prices(file)
    assert time.process_time() - begin < 1


@pytest.mark.parametrize("number", ["1e3", "0", "0e-30000000", "0.000000000001", "1000000000", "1.10"])
def test_prices_between(tmp_path: Path, number: str) -> None:
    file = tmp_path / "prices.toml"
    file.write_text(f"currency = 'EUR'\n[price]\ndefault = {number}\n")
    default = read_prices(file).default
    assert default == Decimal(number)
    assert len(str(default)) < 20


def test_a_mark_of_byte_order_is_no_part_of_the_first_key(tmp_path: Path) -> None:
    file = tmp_path / "prices.toml"
    file.write_bytes(b"\xef\xbb\xbfcurrency = 'EUR'\n[price]\ndefault = 1\n")
    assert read_prices(file).currency == "EUR"


def test_prices_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_prices(tmp_path / "none.toml")


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.text(), lambda s: st.dictionaries(st.text(), s)))
def test_no_document_is_a_surprise(document: object) -> None:
    with pytest.raises(ConfigError):
        parse_prices(Path("x"), {"currency": "EUR", "price": document, "more": 1})
