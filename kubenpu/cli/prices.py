# SPDX-License-Identifier: Apache-2.0
"""What an hour of a device costs: a TOML file of the operator's, in decimal numbers as they are written there.

    currency = "EUR"
    [price]
    default = 1.20
    driver.xe = 0.80
    device."0000:03:00.0" = 2.50

Of a device the price of its address counts, else that of its driver table, else the default, else it has none. Refuses
what is no price, and keys that it does not know: a price that is overlooked is a wrong bill.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from pathlib import Path

from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file
from kubenpu.model.toml import parse_toml

MOST = Decimal(10**9)
PLACES = 12
"""After the decimal point; an exponent of millions would keep a processor busy for as long."""

_REMEDY = "kubenpuctl(1) shows such a file"


@dataclass(frozen=True, slots=True)
class Prices:
    """Of one device and hour."""

    currency: str
    default: Decimal | None
    by_driver: Mapping[str, Decimal]
    by_device: Mapping[str, Decimal]

    def of(self, device: str, driver: str | None) -> Decimal | None:
        return self.by_device.get(device, self.by_driver.get(driver or "", self.default))

    def find_unused(self, devices: Collection[tuple[str, str | None]]) -> Iterator[str]:
        """Keys of the file that are for none of these devices and drivers."""
        addresses, drivers = {address for address, _ in devices}, {driver or "" for _, driver in devices}
        yield from (f"driver.{name}" for name in self.by_driver if name not in drivers)
        yield from (f'device."{name}"' for name in self.by_device if name not in addresses)


def read_prices(path: Path) -> Prices:
    try:
        document = parse_toml(read_regular_file(path).decode("utf-8-sig"), Decimal)
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {error.strerror}", "Name another --price") from error
    except (ValueError, ArithmeticError) as error:  # an exponent that no Decimal has is arithmetic
        raise _refused(path, str(error)) from error
    return parse_prices(path, document)


def parse_prices(path: Path, document: Mapping[str, object]) -> Prices:
    currency, table = document.get("currency", ""), document.get("price")
    if document.keys() - {"currency", "price"}:
        raise _refused(path, f"unknown keys {', '.join(sorted(document.keys() - {'currency', 'price'}))}")
    if not isinstance(currency, str) or not currency.isprintable() or not 1 <= len(currency) <= 8:
        raise _refused(path, "currency is to be a short text such as EUR")
    if not isinstance(table, dict) or not table or table.keys() - {"default", "driver", "device"}:
        raise _refused(path, "the table price is to have default, driver or device")
    default = _price(path, "default", table["default"]) if "default" in table else None
    return Prices(currency, default, _prices(path, table, "driver"), _prices(path, table, "device"))


def _prices(path: Path, table: Mapping[str, object], name: str) -> dict[str, Decimal]:
    entries = table.get(name, {})
    if not isinstance(entries, dict):
        raise _refused(path, f"price.{name} is to be a table")
    return {key: _price(path, f"{name}.{key}", value) for key, value in entries.items()}


def _price(path: Path, name: str, value: object) -> Decimal:
    if isinstance(value, bool) or not isinstance(value, int | Decimal):
        raise _refused(path, f"price.{name} is no number")
    price = Decimal(value)
    if not price.is_finite() or not 0 <= price <= MOST:
        raise _refused(path, f"price.{name} is not between 0 and {MOST}")
    if price != price.quantize(Decimal(1).scaleb(-PLACES)):
        raise _refused(path, f"price.{name} has more than {PLACES} decimal places")
    return price.normalize()


def _refused(path: Path, why: str) -> ConfigError:
    return ConfigError(f"{path} cannot be used: {why}", _REMEDY)
