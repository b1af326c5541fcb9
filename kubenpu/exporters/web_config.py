# SPDX-License-Identifier: Apache-2.0
"""The web configuration file, in the format that Prometheus' exporters share: TLS, response headers, users.

Data comes from one YAML file; this module says what may be in it and what it means, opens nothing else. Refuses, with
file and line, whatever it does not know and whatever this server cannot do: a key that is silently ignored is one
that somebody relies on.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from kubenpu.exporters.web_yaml import Section, Text, one_of, read_yaml
from kubenpu.model.errors import ConfigError

# Go's names of those crypto/tls considers secure, up to TLS 1.2, and OpenSSL's.
CIPHERS = {
    f"TLS_{exchange}_WITH_{go}": (f"{openssl_exchange}{openssl}")
    for exchange, openssl_exchange in (("ECDHE_ECDSA", "ECDHE-ECDSA-"), ("ECDHE_RSA", "ECDHE-RSA-"), ("RSA", ""))
    for go, openssl in (
        ("AES_128_GCM_SHA256", "AES128-GCM-SHA256"),
        ("AES_256_GCM_SHA384", "AES256-GCM-SHA384"),
        ("CHACHA20_POLY1305_SHA256", "CHACHA20-POLY1305"),
        ("AES_128_CBC_SHA", "AES128-SHA"),
        ("AES_256_CBC_SHA", "AES256-SHA"),
    )
    if (exchange, openssl) != ("RSA", "CHACHA20-POLY1305")
}
# Those of TLS 1.3 are always on; neither Go nor we can choose among them.
CIPHERS_13 = ("TLS_AES_128_GCM_SHA256", "TLS_AES_256_GCM_SHA384", "TLS_CHACHA20_POLY1305_SHA256")
CURVES = {"CurveP256": "prime256v1", "CurveP384": "secp384r1", "CurveP521": "secp521r1", "X25519": "X25519"}
VERSIONS = {"TLS12": ssl.TLSVersion.TLSv1_2, "TLS13": ssl.TLSVersion.TLSv1_3}
# RequestClientCert looks at no certificate, so it is the same as none. One that is required but not verified
# (RequireAnyClientCert) is nothing that OpenSSL does by itself, and protects nothing.
CLIENT_AUTH = {
    "NoClientCert": ssl.CERT_NONE,
    "RequestClientCert": ssl.CERT_NONE,
    "VerifyClientCertIfGiven": ssl.CERT_OPTIONAL,
    "RequireAndVerifyClientCert": ssl.CERT_REQUIRED,
}
HEADERS: Mapping[str, tuple[str, ...]] = {
    "Strict-Transport-Security": (),
    "X-Content-Type-Options": ("nosniff",),
    "X-Frame-Options": ("deny", "sameorigin"),
    "X-XSS-Protection": (),
    "Content-Security-Policy": (),
}
_BCRYPT = re.compile(r"\$2[aby]\$([0-9]{2})\$[./A-Za-z0-9]{53}")
COSTS = range(4, 17)


@dataclass(frozen=True, slots=True)
class TlsConfig:
    """`cert`, `key` and `client_ca` are files. `ciphers` and `curve` are OpenSSL's names, empty for its defaults."""

    where: str
    cert: Text
    key: Text
    client_auth: ssl.VerifyMode
    client_ca: Text | None
    minimum: ssl.TLSVersion
    maximum: ssl.TLSVersion
    ciphers: tuple[Text, ...]
    curve: Text | None
    prefer_server: bool

    def files(self) -> tuple[Path, ...]:
        """What has to be read besides the configuration."""
        return tuple(Path(text.value) for text in (self.cert, self.key, self.client_ca) if text is not None)


@dataclass(frozen=True, slots=True)
class WebConfig:
    """What the file says. `users` are names and bcrypt hashes, `notes` what is accepted but has no effect."""

    tls: TlsConfig | None
    headers: Mapping[str, str]
    users: Mapping[str, bytes]
    notes: tuple[str, ...] = ()


def read_web_config(path: Path) -> WebConfig:
    """Raises ConfigError with file and line."""
    document = read_yaml(path)
    tls, http = document.section("tls_server_config"), document.section("http_server_config")
    users = document.section("basic_auth_users")
    document.finish()
    headers, notes = _http(http) if http is not None else ({}, ())
    return WebConfig(
        _tls(tls, path.parent) if tls is not None else None, headers, _users(users) if users is not None else {}, notes
    )


def _tls(section: Section, directory: Path) -> TlsConfig:
    minimum = _version(section, "min_version", ssl.TLSVersion.TLSv1_2)
    maximum = _version(section, "max_version", ssl.TLSVersion.TLSv1_3)
    ciphers = section.texts("cipher_suites")
    mapped = tuple(_cipher(cipher) for cipher in ciphers)
    chosen = tuple(cipher for cipher in mapped if cipher is not None)
    if ciphers and not chosen:  # only those of TLS 1.3
        minimum = ssl.TLSVersion.TLSv1_3
    if minimum > maximum:
        raise ConfigError(f"{section.where_is('max_version')}: no version of TLS is left between lowest and highest")
    client_auth = section.text("client_auth_type")
    prefer_server = section.boolean("prefer_server_cipher_suites")
    cert, key = _file(section, "cert_file", directory), _file(section, "key_file", directory)
    client_ca = _file(section, "client_ca_file", directory)
    curve = _curve(section.texts("curve_preferences"))
    section.finish()
    if cert is None or key is None:
        raise ConfigError(f"{section.where}: TLS needs both cert_file and key_file")
    mode = CLIENT_AUTH[one_of(client_auth, "client_auth_type", CLIENT_AUTH)] if client_auth else ssl.CERT_NONE
    if (mode is ssl.CERT_NONE) != (client_ca is None):
        where = section.where_is("client_ca_file" if client_ca else "client_auth_type")
        raise ConfigError(
            f"{where}: client_ca_file and a client_auth_type that verifies belong together",
            "Set client_auth_type to RequireAndVerifyClientCert and client_ca_file, or neither",
        )
    return TlsConfig(
        section.where,
        cert,
        key,
        mode,
        client_ca,
        minimum,
        maximum,
        chosen,
        curve,
        prefer_server is not False,
    )


def _version(section: Section, key: str, default: ssl.TLSVersion) -> ssl.TLSVersion:
    text = section.text(key)
    return default if text is None else VERSIONS[one_of(text, key, VERSIONS)]


def _cipher(text: Text) -> Text | None:
    """OpenSSL's name; None for one that is always on."""
    if text.value in CIPHERS_13:
        return None
    return Text(CIPHERS[one_of(text, "a cipher suite", CIPHERS)], text.where)


def _curve(texts: tuple[Text, ...]) -> Text | None:
    if len(texts) > 1:
        raise ConfigError(
            f"{texts[1].where}: curve_preferences can only be a single curve: Python sets no list",
            "Name the one to be used, or none: the default prefers X25519",
        )
    return Text(CURVES[one_of(texts[0], "a curve", CURVES)], texts[0].where) if texts else None


def _file(section: Section, key: str, directory: Path) -> Text | None:
    """Relative names are relative to the configuration file."""
    text = section.text(key)
    if text is None:
        return None
    if not text.value:
        raise ConfigError(f"{text.where}: {key} is empty")
    return Text(str(directory / text.value), text.where)


def _http(section: Section) -> tuple[dict[str, str], tuple[str, ...]]:
    http2, headers = section.boolean("http2"), section.section("headers")
    section.finish()
    notes = (f"{section.where_is('http2')}: http2 has no effect: HTTP/1.1 is served",) if http2 else ()
    found = {name: headers.text(name) for name in HEADERS} if headers is not None else {}
    if headers is not None:
        headers.finish()
    return {name: _header(name, text) for name, text in found.items() if text is not None and text.value}, notes


def _header(name: str, text: Text) -> str:
    if HEADERS[name]:
        return one_of(text, name, HEADERS[name])
    if not text.value.isascii():
        raise ConfigError(f"{text.where}: {name} has to be ASCII")
    return text.value


def _users(section: Section) -> dict[str, bytes]:
    users = {}
    for name in section.keys():  # noqa: SIM118 - it is no mapping
        text = section.text(name)
        found = _BCRYPT.fullmatch(text.value) if text is not None else None
        where = section.where_is(name)
        if not name or ":" in name or not name.isprintable():
            raise ConfigError(f"{where}: a user's name is not empty, printable and without colon")
        if text is None or found is None:
            raise ConfigError(
                f"{where}: what is given for user {name[:80]!r} is no bcrypt hash", "Use: htpasswd -nBC 10 NAME"
            )
        if int(found[1]) not in COSTS:
            raise ConfigError(f"{where}: the cost of a hash has to be from {COSTS.start} to {COSTS.stop - 1}")
        users[name] = text.value.encode()
    if not users:
        raise ConfigError(f"{section.where}: basic_auth_users is empty", "Name a user, or take the key away")
    return users
