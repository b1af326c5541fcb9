# SPDX-License-Identifier: Apache-2.0
"""Settings: one table, three places to set them, and errors that name the file and the line."""

from __future__ import annotations

import argparse
import dataclasses
import os
import time
import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from kubenpu.config import settings as module
from kubenpu.config.settings import SETTINGS, Settings, parse_daemon_arguments, read_settings, render_sample
from kubenpu.config.toml_file import find_lines, read_toml
from kubenpu.model.errors import ConfigError

GOLDEN = Path(__file__).parent.parent / "golden" / "kubenpu.toml"


@pytest.fixture(autouse=True)
def no_system_file(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(module, "DEFAULT_FILE", tmp_path / "default" / "kubenpu.toml")


def read(tmp_path: Path, text: str, *flags: str) -> Settings:
    file = tmp_path / "kubenpu.toml"
    file.write_text(text)
    return read_settings(parse_daemon_arguments(["--config.file", str(file), *flags]))


def defaults() -> Settings:
    return read_settings(parse_daemon_arguments([]))


def test_the_table_and_the_dataclass_are_one_thing() -> None:
    assert sorted(setting.field for setting in SETTINGS) == sorted(f.name for f in dataclasses.fields(Settings))
    assert len({setting.key for setting in SETTINGS}) == len(SETTINGS)
    for setting in SETTINGS:
        assert setting.help.endswith(".")
        assert getattr(defaults(), setting.field) == setting.default


def test_every_default_is_a_value_its_type_accepts() -> None:
    document = tomllib.loads(render_sample().replace("\n#", "\n").replace("\n ", "\n# "))
    for setting in SETTINGS:
        value: object = document
        for part in setting.key.split("."):
            assert isinstance(value, dict)
            value = value[part]
        assert setting.type.check(value) == setting.default


def test_the_sample_file_is_golden_and_changes_nothing(tmp_path: Path) -> None:
    if "KUBENPU_UPDATE_GOLDEN" in os.environ:
        GOLDEN.write_text(render_sample())
    assert render_sample() == GOLDEN.read_text()
    assert read(tmp_path, render_sample()) == defaults()


def test_flags_over_files_over_defaults(tmp_path: Path) -> None:
    text = '[web]\nlisten_address = ["127.0.0.1:1", "[::1]:2"]\n[log]\nlevel = "debug"\n[kernel]\nmax_slots = 100\n'
    assert read(tmp_path, text).listen_addresses == ("127.0.0.1:1", "[::1]:2")
    both = read(tmp_path, text, "--log.level", "error", "--web.listen-address=:3", "--web.listen-address", ":4")
    assert (both.log_level, both.listen_addresses, both.max_slots) == ("error", (":3", ":4"), 100)
    assert both.telemetry_path == "/metrics"


def test_a_switch_needs_no_value_on_the_command_line(tmp_path: Path) -> None:
    assert read(tmp_path, "", "--web.systemd-socket").systemd_socket is True
    assert read(tmp_path, "web.systemd_socket = true\n").systemd_socket is True
    assert read(tmp_path, "web.systemd_socket = true\n", "--web.systemd-socket=false").systemd_socket is False
    assert read(tmp_path, "", "--web.systemd-socket", "--log.level", "warn").log_level == "warn"
    for wrong in ("web.systemd_socket = 1\n", 'web.systemd_socket = "true"\n'):
        with pytest.raises(ConfigError, match="expected true or false"):
            read(tmp_path, wrong)
    with pytest.raises(ConfigError, match="expected true or false"):
        read(tmp_path, "", "--web.systemd-socket=maybe")


def test_unix_sockets_and_the_web_configuration(tmp_path: Path) -> None:
    text = 'web.listen_address = ["unix:/run/kubenpu/metrics.sock", ":1"]\nweb.config.file = "/etc/kubenpu/web.yml"\n'
    got = read(tmp_path, text)
    assert got.listen_addresses == ("unix:/run/kubenpu/metrics.sock", ":1")
    assert got.web_config_file == "/etc/kubenpu/web.yml"
    assert read(tmp_path, text, "--web.config.file=/else.yml").web_config_file == "/else.yml"
    for wrong in ("unix:metrics.sock", "unix:", "/run/kubenpu/metrics.sock"):
        with pytest.raises(ConfigError, match="expected a list of addresses"):
            read(tmp_path, "", "--web.listen-address", wrong)


def test_drop_ins_win_in_the_order_of_their_names(tmp_path: Path) -> None:
    (tmp_path / "kubenpu.toml.d").mkdir()
    (tmp_path / "kubenpu.toml.d" / "20.toml").write_text('[log]\nlevel = "warn"\n')
    (tmp_path / "kubenpu.toml.d" / "10.toml").write_text('[log]\nlevel = "error"\nformat = "json"\n')
    (tmp_path / "kubenpu.toml.d" / "30.txt").write_text("no TOML")
    got = read(tmp_path, '[log]\nlevel = "debug"\n[kernel]\nmax_slots = 64\n')
    assert (got.log_level, got.log_format, got.max_slots) == ("warn", "json", 64)


def test_the_default_file_is_read_and_may_be_absent(tmp_path: Path) -> None:
    (tmp_path / "default").mkdir()
    (tmp_path / "default" / "kubenpu.toml").write_text("ledger.retention_seconds = 5\n")
    assert defaults().retention_seconds == 5
    assert read_settings(argparse.Namespace(config_file=None)).retention_seconds == 5


def test_a_named_file_must_exist(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="does not exist"):
        read_settings(parse_daemon_arguments(["--config.file", str(tmp_path / "absent.toml")]))


def test_unknown_keys_are_named_with_their_line(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    text = '# c\n[web]\nlisten_adress = [":1"]\n\n[nonsense.deep]\n"a\\nb" = 1\n[log]\nlevel = "warn"\n'
    assert read(tmp_path, text).log_level == "warn"
    assert [record.getMessage() for record in caplog.records] == [
        f'{tmp_path}/kubenpu.toml:3: unknown key "web.listen_adress" is ignored, did you mean web.listen_address?',
        f'{tmp_path}/kubenpu.toml:5: unknown key "nonsense.deep.a\\nb" is ignored',
    ]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[kernel]\n\nmax_slots = 63\n", ":3: kernel.max_slots: expected a whole number from 64 to 65536, found 63"),
        ("kernel.max_slots = true\n", ":1: kernel.max_slots: expected a whole number from 64 to 65536, found True"),
        ("kernel.max_slots = 1e3\n", ":1: kernel.max_slots: expected a whole number from 64 to 65536, found 1000.0"),
        ("[kernel.max_slots]\nx = 1\n", ":1: kernel.max_slots: expected a whole number"),
        ("[[kernel.max_slots]]\n", ":1: kernel.max_slots: expected a whole number"),
        ("kernel = { max_slots = 1 }\n", ":1: kernel.max_slots: expected a whole number"),
        ("kernel = 1\n[web]\nlisten_address = ':1'\n", ":3: web.listen_address: expected a list of addresses"),
        ("web.listen_address = []", ":1: web.listen_address: expected a list of addresses"),
        ("web.listen_address = [1]", ":1: web.listen_address: expected a list of addresses"),
        ("web.listen_address = ['10074']", ":1: web.listen_address: expected a list of addresses"),
        ("web.telemetry_path = 'metrics'", ":1: web.telemetry_path: expected a path such as /metrics"),
        ("web.telemetry_path = '/-/ready'", ":1: web.telemetry_path: expected a path such as /metrics"),
        ("log.level = 'warning'", ":1: log.level: expected one of debug, info, warn, error, found 'warning'"),
        ("run_directory = 'run'", ":1: run_directory: expected an absolute path"),
        ('run_directory = "/a\\u0000b"', ":1: run_directory: expected an absolute path"),
        ("identity.cri_sockets = ['/a', 2]", ":1: identity.cri_sockets: expected a list of absolute paths"),
        ("log.level = '" + "x" * 5000 + "'", "xxx..."),
        ("a = 1\nb = \n", ":2: not valid TOML"),
        ("a = 1\na = 2\n", ":2: not valid TOML"),
        ("a = " + "[" * 100000, "not valid TOML"),
        ("a = " + "9" * 5000, "not valid TOML"),
        ("#" * ((1 << 20) + 1), "larger than"),
    ],
)
def test_errors_name_file_and_line(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read(tmp_path, text)
    assert f"{tmp_path}/kubenpu.toml{message if message.startswith(':') else ''}" in str(caught.value)
    assert message in str(caught.value)
    assert len(str(caught.value)) < 400


def test_a_file_that_is_not_utf8(tmp_path: Path) -> None:
    (tmp_path / "x.toml").write_bytes(b"a = 1\nb = '\xff'\n")
    with pytest.raises(ConfigError, match=r"x\.toml:2: not UTF-8"):
        read_toml(tmp_path / "x.toml")


def test_a_directory_is_no_file(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_toml(tmp_path)


def test_nothing_is_an_empty_file(tmp_path: Path) -> None:
    """A drop-in is masked by a link to it."""
    (tmp_path / "kubenpu.toml.d").mkdir()
    (tmp_path / "kubenpu.toml.d" / "z.toml").symlink_to("/dev/null")
    assert read(tmp_path, "") == read_settings(parse_daemon_arguments(["--config.file", "/dev/null"]))


def test_a_pipe_among_the_settings_is_an_error_at_once(tmp_path: Path) -> None:
    """Opening one waits for a writer, and the thread that reloads would never come back."""
    (tmp_path / "kubenpu.toml.d").mkdir()
    os.mkfifo(tmp_path / "kubenpu.toml.d" / "z.toml")
    with pytest.raises(ConfigError, match=r"cannot read .*/z\.toml: not a regular file"):
        read(tmp_path, "")


@pytest.mark.parametrize(
    ("flag", "message"),
    [
        ("--kernel.max-slots=many", "--kernel.max-slots: expected a whole number from 64 to 65536, found 'many'"),
        ("--kernel.max-slots=-1", "found -1"),
        ("--kernel.max-slots=" + "9" * 5000, "--kernel.max-slots: expected"),
        ("--log.format=xml", "--log.format: expected one of logfmt, json"),
        ("--web.listen-address=", "--web.listen-address: expected a list of addresses"),
        ("--devices.sysfs=relative", "--devices.sysfs: expected an absolute path"),
    ],
)
def test_wrong_flags_name_the_flag(flag: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_settings(parse_daemon_arguments([flag]))
    assert message in str(caught.value)


def test_numbers_and_sockets_from_flags() -> None:
    flags = ["--kernel.max-slots", "64", "--identity.cri-sockets=unix:///run/a.sock", "--identity.cri-sockets=/run/b"]
    got = read_settings(parse_daemon_arguments(flags))
    assert got.max_slots == 64
    assert got.cri_sockets == (Path("/run/a.sock"), Path("/run/b"))


@pytest.mark.parametrize(("flag", "status"), [("--version", 0), ("--help", 0), ("--log.leve=info", 2), ("x", 2)])
def test_flags_that_end_the_program(flag: str, status: int, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_daemon_arguments([flag])
    assert caught.value.code == status
    assert capsys.readouterr()[status // 2]


def test_lines_are_found_where_people_write_keys() -> None:
    text = 'top = 1\n[ web ] # c\n "listen_address"=[\n":1"]\nlog . level = 1\n[[a."b"]]\nc=2\n'
    assert find_lines(text) == {
        "top": 1,
        "web": 2,
        "web.listen_address": 3,
        "web.log.level": 5,
        "a.b": 6,
        "a.b.c": 7,
    }


def test_looking_for_lines_does_not_hang() -> None:
    begin = time.monotonic()
    find_lines(" " * (1 << 20))
    find_lines("[" * (1 << 20))
    assert time.monotonic() - begin < 5


@hypothesis_settings(deadline=None)
@given(st.text(max_size=200))
def test_any_text_gives_settings_or_an_error_of_ours(tmp_path_factory: pytest.TempPathFactory, text: str) -> None:
    file = tmp_path_factory.getbasetemp() / "any.toml"
    file.write_bytes(text.encode("utf-8", "surrogatepass"))
    options = argparse.Namespace(config_file=file)
    try:
        assert read_settings(options).log_format in {"logfmt", "json"}
    except ConfigError as error:
        assert str(file) in str(error)
