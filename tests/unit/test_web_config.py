# SPDX-License-Identifier: Apache-2.0
"""The web configuration file: what Prometheus' exporters share is understood, the rest refused with file and line."""

from __future__ import annotations

import importlib
import re
import ssl
import types
from pathlib import Path

import bcrypt
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubenpu.exporters.web_config import CIPHERS, HEADERS, WebConfig, read_web_config
from kubenpu.exporters.web_tls import make_context
from kubenpu.model.errors import ConfigError
from tests.fakes.certificates import Authority, Certificate

HASH = bcrypt.hashpw(b"secret", bcrypt.gensalt(4)).decode()
FULL = f"""\
# everything there is
tls_server_config:
  cert_file: server.pem
  key_file: /etc/ssl/server.key
  client_auth_type: RequireAndVerifyClientCert
  client_ca_file: ca.pem
  min_version: TLS12
  max_version: TLS13
  cipher_suites:
    - TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256
    - TLS_AES_128_GCM_SHA256
    - TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
  prefer_server_cipher_suites: false
  curve_preferences: [CurveP256]
http_server_config:
  http2: true
  headers:
    Strict-Transport-Security: max-age=31536000
    X-Frame-Options: deny
    X-XSS-Protection: 0
    Content-Security-Policy: ""
basic_auth_users:
  alice: {HASH}
  "b ob": '{HASH}'
"""


def read(tmp_path: Path, text: str | bytes) -> WebConfig:
    file = tmp_path / "web.yml"
    file.write_bytes(text if isinstance(text, bytes) else text.encode(errors="surrogateescape"))
    return read_web_config(file)


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return Authority(tmp_path_factory.mktemp("certificates")).issue("server")


def test_everything_is_understood(tmp_path: Path) -> None:
    config = read(tmp_path, FULL)
    tls = config.tls
    assert tls is not None
    assert tls.files() == (tmp_path / "server.pem", Path("/etc/ssl/server.key"), tmp_path / "ca.pem")
    assert (tls.client_auth, tls.prefer_server) == (ssl.CERT_REQUIRED, False)
    assert (tls.minimum, tls.maximum) == (ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3)
    assert [c.value for c in tls.ciphers] == ["ECDHE-RSA-AES128-GCM-SHA256", "ECDHE-ECDSA-CHACHA20-POLY1305"]
    assert tls.curve is not None
    assert tls.curve.value == "prime256v1"
    assert config.headers == {
        "Strict-Transport-Security": "max-age=31536000",
        "X-Frame-Options": "deny",
        "X-XSS-Protection": "0",
    }
    assert config.users == {"alice": HASH.encode(), "b ob": HASH.encode()}
    assert [note.partition(": ")[0] for note in config.notes] == [f"{tmp_path}/web.yml:16"]


def test_users_alone_are_enough(tmp_path: Path) -> None:
    config = read(tmp_path, f"basic_auth_users: {{a: {HASH}}}\n")
    assert (config.tls, list(config.users), config.notes) == (None, ["a"], ())


TLS = "tls_server_config:\n  cert_file: c\n  key_file: k\n"
ALICE = "basic_auth_users:\n  alice: "


@pytest.mark.parametrize(
    ("text", "line", "problem"),
    [
        ("", 1, "nothing is configured"),
        ("# nothing\n\n", 1, "nothing is configured"),
        ("{}\n", 1, "nothing is configured"),
        ("- a\n", 1, "has to consist of keys and values"),
        ("tls_server_config: yes\n", 1, "has to consist of keys and values"),
        ("basic_auth_user:\n  a: b\n", 1, "unknown key 'basic_auth_user' here. Perhaps basic_auth_users is meant."),
        (TLS + "  cert_fiel: x\n", 4, "unknown key 'cert_fiel' in tls_server_config. Perhaps cert_file is meant."),
        (TLS + "  client_allowed_sans: [x]\n", 4, "unknown key 'client_allowed_sans'"),
        (TLS + "  cert: inline\n", 4, "unknown key 'cert'"),
        ("rate_limit: {burst: 1}\n", 1, "unknown key 'rate_limit'"),
        (TLS + TLS, 4, "'tls_server_config' appears twice"),
        (TLS + "  key_file: other\n", 4, "'key_file' appears twice"),
        ("tls_server_config:\n  cert_file: c\n", 2, "needs both"),
        ("tls_server_config: {}\n", 1, "needs both"),
        ("tls_server_config:\n  cert_file:\n", 2, "has to be text"),
        ("tls_server_config:\n  cert_file: ''\n", 2, "is empty"),
        ("tls_server_config:\n  cert_file: [c]\n", 2, "has to be text"),
        (TLS + "  client_auth_type: RequireAndVerifyClientCert\n", 4, "belong together"),
        (TLS + "  client_ca_file: ca\n", 4, "belong together"),
        (TLS + "  client_auth_type: NoClientCert\n  client_ca_file: ca\n", 5, "belong together"),
        (TLS + "  client_auth_type: RequireAnyClientCert\n", 4, "cannot be 'RequireAnyClientCert'"),
        (TLS + "  client_auth_type: requireandverifyclientcert\n", 4, "cannot be"),
        (TLS + "  min_version: TLS10\n", 4, "cannot be 'TLS10'. Known: TLS12, TLS13"),
        (TLS + "  max_version: SSL30\n", 4, "cannot be"),
        (TLS + "  min_version: TLS13\n  max_version: TLS12\n", 5, "no version of TLS is left"),
        (TLS + "  cipher_suites: TLS_AES_128_GCM_SHA256\n", 4, "has to be a list"),
        (TLS + "  cipher_suites:\n  - TLS_RSA_WITH_RC4_128_SHA\n", 5, "a cipher suite cannot be"),
        (TLS + "  cipher_suites:\n  - ALL\n", 5, "a cipher suite cannot be"),
        (TLS + "  max_version: TLS12\n  cipher_suites: [TLS_AES_128_GCM_SHA256]\n", 4, "no version of TLS is left"),
        (TLS + "  prefer_server_cipher_suites: maybe\n", 4, "true or false"),
        (TLS + "  curve_preferences: [X25519, CurveP256]\n", 4, "single curve"),
        (TLS + "  curve_preferences: [secp224r1]\n", 4, "a curve cannot be"),
        ("http_server_config:\n  http2: 1\n", 2, "true or false"),
        ("http_server_config:\n  http2: !!bool maybe\n", 2, "true or false"),
        ("http_server_config:\n  headers:\n    Set-Cookie: a\n", 3, "unknown key 'Set-Cookie'"),
        ("http_server_config:\n  headers:\n    X-Frame-Options: allow\n", 3, "Known: deny, sameorigin"),
        ('http_server_config:\n  headers:\n    X-XSS-Protection: "a\\r\\nb: c"\n', 3, "text in one line"),
        ("http_server_config:\n  headers:\n    X-XSS-Protection: ä\n", 3, "ASCII"),
        ("basic_auth_users: {}\n", 1, "is empty"),
        ("basic_auth_users:\n", 1, "has to consist of keys and values"),
        (ALICE + "secret\n", 2, "no bcrypt hash"),
        (ALICE + HASH[:-1] + "\n", 2, "no bcrypt hash"),
        (ALICE + HASH.replace("$04$", "$31$") + "\n", 2, "the cost of a hash"),
        (ALICE + "\n", 2, "has to be text"),
        (f"basic_auth_users:\n  '': {HASH}\n", 2, "a user's name"),
        (f"basic_auth_users:\n  'a:b': {HASH}\n", 2, "a user's name"),
        ("a: [\n\n", 3, "not valid YAML"),
        ("a: b\n c: d\n", 2, "not valid YAML"),
        ("a: b\n---\na: b\n", 2, "not valid YAML"),
        ("? [a]\n: b\n", 1, "no key"),
        ("a: &x [*x]\n", 1, "unknown key"),
        ("<<: {a: b}\n", 1, "unknown key"),
        (b"a: b\nc: \xff\n", 2, "not UTF-8"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(tmp_path: Path, text: str | bytes, line: int, problem: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(problem)) as raised:
        read(tmp_path, text)
    assert str(raised.value).startswith(f"{tmp_path}/web.yml:{line}: ")


@pytest.mark.parametrize("text", ["[" * 5000, "a: \0", "x" * (2 << 20), "&a [*a" * 999])
def test_hostile_files_are_errors_of_ours(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path, text)


@given(st.text(alphabet="a:[]{}&*!|>'\"%@-?,# \n\t\x00\ud800", max_size=40))
def test_nothing_else_than_our_error_comes_out(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    with pytest.raises(ConfigError):
        read(tmp_path_factory.getbasetemp(), text.encode(errors="surrogatepass"))


def test_a_missing_library_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> types.ModuleType:
        raise ImportError(name)

    monkeypatch.setattr(importlib, "import_module", refuse)
    with pytest.raises(ConfigError, match="python3-yaml"):
        read(tmp_path, FULL)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"cannot read {tmp_path}/none.yml: No such file"):
        read_web_config(tmp_path / "none.yml")


# ---- the context made of it ----


def context(tmp_path: Path, server: Certificate, more: str = "") -> ssl.SSLContext:
    config = read(tmp_path, f"tls_server_config:\n  cert_file: {server.cert}\n  key_file: {server.key}\n{more}")
    assert config.tls is not None
    return make_context(config.tls)


def names(made: ssl.SSLContext) -> set[str]:
    return {cipher["name"] for cipher in made.get_ciphers() if cipher["protocol"] != "TLSv1.3"}


@pytest.mark.parametrize("cipher", CIPHERS)
def test_every_cipher_suite_is_one_of_openssl(tmp_path: Path, server: Certificate, cipher: str) -> None:
    made = context(tmp_path, server, f"  cipher_suites: [{cipher}]\n")
    assert names(made) == {CIPHERS[cipher]}


@pytest.mark.parametrize("curve", ["CurveP256", "CurveP384", "CurveP521", "X25519"])
def test_every_curve_is_one_of_openssl(tmp_path: Path, server: Certificate, curve: str) -> None:
    context(tmp_path, server, f"  curve_preferences: [{curve}]\n")


def test_suites_of_tls_1_3_alone_mean_tls_1_3(tmp_path: Path, server: Certificate) -> None:
    made = context(tmp_path, server, "  cipher_suites: [TLS_CHACHA20_POLY1305_SHA256]\n")
    assert made.minimum_version is ssl.TLSVersion.TLSv1_3


def test_old_versions_and_renegotiation_are_off(tmp_path: Path, server: Certificate) -> None:
    made = context(tmp_path, server)
    assert (made.minimum_version, made.verify_mode) == (ssl.TLSVersion.TLSv1_2, ssl.CERT_NONE)
    for option in (ssl.OP_NO_RENEGOTIATION, ssl.OP_NO_TICKET, ssl.OP_CIPHER_SERVER_PREFERENCE):
        assert made.options & option
    chosen = context(tmp_path, server, "  prefer_server_cipher_suites: false\n")
    assert not chosen.options & ssl.OP_CIPHER_SERVER_PREFERENCE


def test_unusable_certificates_are_named(tmp_path: Path, server: Certificate) -> None:
    authority = Authority(tmp_path, "other")
    locked = authority.issue("locked", "-newkey", "rsa:2048", "-passout", "pass:x")
    missing, empty = tmp_path / "missing", tmp_path / "empty"
    empty.touch()
    for cert, key, problem in (
        (server.cert, authority.own.key, "no certificate with its key"),
        (server.key, server.key, "no certificate with its key"),
        (locked.cert, locked.key, "no certificate with its key"),
        (empty, server.key, "no certificate with its key"),
        (server.cert, missing, "No such file"),
    ):
        with pytest.raises(ConfigError, match=problem) as raised:
            context(tmp_path, Certificate(cert, key))
        assert str(raised.value).startswith(f"{tmp_path}/web.yml:{3 if key == missing else 2}: ")
    for ca, problem in ((missing, "No such file"), (empty, "no certificate is in")):
        with pytest.raises(ConfigError, match=problem) as raised:
            more = f"  client_auth_type: VerifyClientCertIfGiven\n  client_ca_file: {ca}\n"
            context(tmp_path, server, more)
        assert str(raised.value).startswith(f"{tmp_path}/web.yml:5: ")


def test_headers_are_those_of_the_format() -> None:
    assert set(HEADERS) == {
        "Content-Security-Policy",
        "Strict-Transport-Security",
        "X-Content-Type-Options",
        "X-Frame-Options",
        "X-XSS-Protection",
    }
