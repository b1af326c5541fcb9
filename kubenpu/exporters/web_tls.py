# SPDX-License-Identifier: Apache-2.0
"""Makes the TLS context that a web configuration asks for. Reads certificate, key and authorities; keeps no file open.

Refuses a certificate without its key, a key with a passphrase (nobody is there to type it), and a cipher suite or
curve that this OpenSSL does not have. Sessions are not resumed: every connection sees the certificate in force.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from kubenpu.exporters.web_config import TlsConfig
from kubenpu.exporters.web_yaml import Text
from kubenpu.model.errors import ConfigError
from kubenpu.model.files import read_regular_file


def make_context(config: TlsConfig) -> ssl.SSLContext:
    """Raises ConfigError with file and line of the key that names what is wrong."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version, context.maximum_version = config.minimum, config.maximum
    context.options |= ssl.OP_NO_TICKET | ssl.OP_NO_RENEGOTIATION | ssl.OP_NO_COMPRESSION
    context.num_tickets = 0
    if config.prefer_server:
        context.options |= ssl.OP_CIPHER_SERVER_PREFERENCE
    else:
        context.options &= ~ssl.OP_CIPHER_SERVER_PREFERENCE
    context.set_alpn_protocols(["http/1.1"])
    _set_ciphers(context, config)
    _load_certificate(context, config)
    _load_authorities(context, config)
    return context


def _set_ciphers(context: ssl.SSLContext, config: TlsConfig) -> None:
    for cipher in config.ciphers:
        try:
            context.set_ciphers(cipher.value)
        except ssl.SSLError as error:
            raise ConfigError(f"{cipher.where}: this OpenSSL does not offer {cipher.value}") from error
    if config.ciphers:
        context.set_ciphers(":".join(cipher.value for cipher in config.ciphers))
    if config.curve is not None:
        try:
            context.set_ecdh_curve(config.curve.value)
        except (ssl.SSLError, ValueError) as error:
            raise ConfigError(f"{config.curve.where}: this OpenSSL does not have {config.curve.value}") from error


def _load_certificate(context: ssl.SSLContext, config: TlsConfig) -> None:
    _require_readable(config.cert)
    _require_readable(config.key)
    try:
        context.load_cert_chain(config.cert.value, config.key.value, password="")  # without it OpenSSL would ask
    except OSError as error:
        raise ConfigError(
            f"{config.cert.where}: {config.cert.value} and {config.key.value} are no certificate with its key"
            f" ({_reason(error)})",
            "Both have to be PEM, belong together, and the key must not have a passphrase",
        ) from error


def _load_authorities(context: ssl.SSLContext, config: TlsConfig) -> None:
    context.verify_mode = config.client_auth
    if config.client_ca is None:
        return
    _require_readable(config.client_ca)
    try:
        context.load_verify_locations(config.client_ca.value)
    except OSError as error:
        text = f"{config.client_ca.where}: no certificate is in {config.client_ca.value} ({_reason(error)})"
        raise ConfigError(text) from error


def _reason(error: OSError) -> str:
    """OpenSSL's, or the system's when a file goes between being looked at and being loaded."""
    reason = error.reason if isinstance(error, ssl.SSLError) else error.strerror
    return (reason or "PEM lib").replace("_", " ").lower()


def _require_readable(text: Text) -> None:
    """OpenSSL does not say which file it cannot read, and waits for a pipe forever."""
    try:
        read_regular_file(Path(text.value))
    except OSError as error:
        raise ConfigError(f"{text.where}: cannot read {text.value}: {error.strerror}") from error
