"""Configuration: the order of the sources, errors that name the place and the remedy, and the way back."""

import tomllib
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from millrace.broker.streams.stream import StreamSpec
from millrace.errors import ConfigError
from millrace.node.config import (
    SETTINGS,
    Address,
    Config,
    Node,
    as_table,
    build,
    describe,
    load,
    toml_value,
)
from millrace.settings import Field


def write(directory: Path, text: str) -> Path:
    path = directory / "millrace.toml"
    path.write_text(text)
    return path


def refused(path: Path | None = None, environ: dict[str, str] | None = None, *overrides: str) -> str:
    with pytest.raises(ConfigError) as caught:
        load(path, environ or {}, overrides)
    return str(caught.value)


def test_sources_count_in_rising_order(tmp_path: Path) -> None:
    path = write(tmp_path, '[log]\nlevel = "debug"\nformat = "json"\n[mqtt]\nsys_interval_s = 1\n')
    environ = {"MILLRACE_LOG__LEVEL": "warning", "MILLRACE_MQTT__SYS_INTERVAL_S": "2", "PATH": "/bin"}
    config = load(path, environ, ["log.level=error"])
    assert config.log.level == "error"
    assert config.mqtt.sys_interval_s == 2
    assert config.log.format == "json"
    assert config.limits == Config().limits


def test_without_sources_there_are_the_defaults() -> None:
    assert load(None, {}, ()) == Config()


def test_the_last_override_counts_and_a_value_may_hold_an_equals_sign() -> None:
    config = load(None, {}, ["node.data=a=b", "node.id=x", "node.id=y"])
    assert config.node == Node(id="y", data="a=b")


def test_values_take_the_type_of_their_setting() -> None:
    config = load(
        None,
        {"MILLRACE_LISTENERS__PROXY_PROTOCOL": "True", "MILLRACE_LIMITS__CONNECTIONS_MAX": "5"},
        ["listeners.mqtt=[::1]:0", "listeners.http="],
    )
    assert config.listeners.proxy_protocol is True
    assert config.limits.connections_max == 5
    assert config.listeners.mqtt == Address("::1", 0)
    assert config.listeners.http is None


def test_the_users_file_lies_in_the_data_directory_unless_named() -> None:
    assert load(None, {}, ["node.data=d"]).users_path == Path("d/users.toml")
    assert load(None, {}, ["node.data=d", "access.users_file=u"]).users_path == Path("u")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("[limts]\n", "unknown section [limts]; the nearest is [limits]"),
        ("[limits]\nconections_max = 1\n", "unknown key limits.conections_max; the nearest is limits.conn"),
        ("log = 1\n", "log is a section, written [log]"),
        ("[limits]\nconnections_max = 0\n", "limits.connections_max = 0: expected a whole number from 1 to"),
        ('[limits]\nconnections_max = "9"\n', "limits.connections_max = '9': expected a whole number"),
        ("[limits]\nconnections_max = true\n", "limits.connections_max = True: expected a whole number"),
        ("[limits]\nconnections_max = 1.0\n", "limits.connections_max = 1.0: expected a whole number"),
        ("[mqtt]\nretain = 1\n", "mqtt.retain = 1: expected true or false"),
        ('[log]\nlevel = "loud"\n', "log.level = 'loud': expected one of debug, info, warning, error"),
        (
            '[node]\nid = "a b"\n',
            "node.id = 'a b': expected 1 to 64 letters, digits, dots, dashes, underscores",
        ),
        ('[node]\nid = "a\\n"\n', "node.id = 'a\\n': expected 1 to 64 letters"),
        (
            '[mqtt]\nsys_interval_s = "1 day"\n',
            "mqtt.sys_interval_s = '1 day': expected seconds from 0 to 86400, or",
        ),
        (
            '[mqtt]\nsys_interval_s = "2d"\n',
            "mqtt.sys_interval_s = '2d': expected seconds from 0 to 86400, or",
        ),
        ("streams = 1\n", "a stream is written [streams.NAME]"),
        ("[streams.a]\nshards = 0\n", "streams.a.shards = 0: expected a whole number from 1 to 256"),
        ("[streams.a]\nshard = 1\n", "a stream has no setting 'shard'; there are: ack,"),
        ('[node]\ndata = ""\n', "node.data = '': expected text that is not empty"),
        ("[node.id]\nx = 1\n", "node.id = {'x': 1}: expected 1 to 64 letters"),
        ('[listeners]\nmqtt = "1883"\n', "listeners.mqtt = '1883': expected HOST:PORT"),
        ("[node\n", "not TOML: "),
    ],
)
def test_an_error_in_the_file_names_file_key_value_and_what_is_expected(
    tmp_path: Path, text: str, expected: str
) -> None:
    path = write(tmp_path, text)
    message = refused(path)
    assert expected in message
    assert str(path) in message


def test_a_file_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    assert "No such file" in refused(tmp_path / "absent.toml")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    assert "not UTF-8 at byte 0" in refused(tmp_path / "binary")


@pytest.mark.parametrize(
    ("variable", "value", "expected"),
    [
        ("MILLRACE_LOG__LEVL", "info", "unknown setting; the nearest is MILLRACE_LOG__LEVEL"),
        ("MILLRACE_LOG_LEVEL", "info", "write MILLRACE_LOG__LEVEL, with two underscores"),
        ("MILLRACE_MQTT__RETAIN", "yes", "= 'yes': expected true or false"),
        ("MILLRACE_LIMITS__INFLIGHT_MAX", "many", "= 'many': expected a whole number from 1 to 65535"),
        ("MILLRACE_LIMITS__INFLIGHT_MAX", "65536", "= 65536: expected a whole number from 1 to 65535"),
        ("MILLRACE_NODE__DATA", "\udcff", "expected text that is not empty"),
        ("MILLRACE_NODE__DATA", "a\0b", "expected text that is not empty"),
    ],
)
def test_an_error_in_the_environment_names_the_variable(variable: str, value: str, expected: str) -> None:
    message = refused(None, {variable: value})
    assert f"environment {variable}" in message
    assert expected in message


def test_other_variables_of_the_product_are_not_settings() -> None:
    assert load(None, {"MILLRACE_URL": "x", "MILLRACE": "y", "OTHER__KEY": "z"}) == Config()


@pytest.mark.parametrize(
    ("override", "expected"),
    [
        ("log.level", "expected section.key=value"),
        ("log.lvl=info", "unknown key log.lvl; the nearest is log.level"),
        ("level=info", "unknown key level; the nearest is log.level"),
        ("log.format=xml", "--set log.format: log.format = 'xml': expected one of text, json"),
    ],
)
def test_an_error_in_an_override_names_it(override: str, expected: str) -> None:
    message = refused(None, None, override)
    assert "--set log" in message or "--set level" in message
    assert expected in message


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["tls.certificate=c"], "tls.certificate and tls.key belong together"),
        (["tls.key=k"], "tls.certificate and tls.key belong together"),
        (["tls.require_client_certificate=true"], "needs tls.client_ca"),
        (["listeners.mqtts=h:1"], "listeners.mqtts needs tls.certificate"),
        (["listeners.wss=h:1"], "listeners.wss needs tls.certificate"),
        (["listeners.ws=127.0.0.1:1883"], "listeners.ws and listeners.mqtt are both 127.0.0.1:1883"),
        (["limits.sessions_max=10"], "limits.connections_max = 100000 is more than limits.sessions_max = 10"),
    ],
)
def test_settings_that_contradict_each_other_are_refused(overrides: list[str], expected: str) -> None:
    assert expected in refused(None, None, *overrides)


def test_free_ports_do_not_collide() -> None:
    config = load(None, {}, ["listeners.mqtt=127.0.0.1:0", "listeners.ws=127.0.0.1:0"])
    assert config.listeners.mqtt == config.listeners.ws == Address("127.0.0.1", 0)


@pytest.mark.parametrize("text", ["127.0.0.1:1883", "[::1]:0", "localhost:65535", "[fe80::1%eth0]:1"])
def test_an_address_reads_as_it_prints(text: str) -> None:
    assert str(Address.parse(text)) == text


@pytest.mark.parametrize(
    "text",
    ["", "host", ":1883", "host:", "host:65536", "host:-1", "host:x", "::1:1883", "[]:1", "a b:1", "h:¹"],
)
def test_a_wrong_address_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"HOST:PORT|port above|brackets"):
        Address.parse(text)


def test_an_address_that_other_nodes_could_not_use_is_refused() -> None:
    assert "cluster.advertise" in refused(None, None, "cluster.advertise=node2")
    assert load(None, {}, ["cluster.advertise=node2:7000"]).cluster.advertise == Address("node2", 7000)


def test_the_tree_cannot_be_changed() -> None:
    config = Config()
    with pytest.raises(AttributeError):
        config.log.level = "debug"  # type: ignore[misc]


def test_the_description_names_every_setting_and_loads_back_equal(tmp_path: Path) -> None:
    text = describe()
    for setting in SETTINGS.values():
        assert f"\n# {setting.description} (" in text
        assert f"\n{setting.name.partition('.')[2]} = " in text
    assert load(write(tmp_path, text)) == Config()


@pytest.mark.parametrize("value", ["\x7f", "\x01\t\n\r", '"', "\\", "\u0085\u2028é😀", "'''"])
def test_any_text_can_be_written_as_toml(value: str) -> None:
    assert tomllib.loads(f"key = {toml_value(value)}") == {"key": value}


def values_of(setting: Field) -> st.SearchStrategy[object]:
    if setting.type is bool:
        return st.booleans()
    if setting.type is int:
        return st.integers(setting.meta.ge, setting.meta.le)
    if setting.type is str:
        if setting.name in ("node.id", "tracing.endpoint"):
            return st.from_regex(setting.meta.pattern, fullmatch=True)
        return st.text(min_size=1, alphabet=st.characters(exclude_categories=["Cs"], exclude_characters="\0"))
    if setting.type is Address:
        return st.none() | st.builds(Address, st.sampled_from(["::1", "h", "10.0.0.1"]), st.just(0))
    return st.sampled_from(setting.choices)


@given(data=st.data())
def test_any_configuration_loads_back_equal(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    shown = sorted(SETTINGS.keys() - {"cluster.secret"})
    chosen = data.draw(st.sets(st.sampled_from(shown), max_size=8))
    values = {name: data.draw(values_of(SETTINGS[name]), label=name) for name in sorted(chosen)}
    try:
        config = build(values)
    except ConfigError:
        return
    path = tmp_path_factory.getbasetemp() / "round.toml"
    path.write_text(describe(config), newline="")
    assert load(path) == config
    assert as_table(load(path)) == as_table(config)


def test_the_secret_of_the_cluster_is_never_shown(tmp_path: Path) -> None:
    """What a person prints, pastes into a report or sends by mail must not hold it; and whoever starts a node
    with what was printed has no secret rather than one that everybody can read."""
    config = load(None, {"MILLRACE_CLUSTER__SECRET": "hush, hush"})
    assert config.cluster.secret == "hush, hush"
    assert "hush" not in describe(config) and "hush" not in str(as_table(config))
    assert as_table(config)["cluster"]["secret"] == "(set)"
    assert as_table(Config())["cluster"]["secret"] == ""
    assert "\n# secret = (set)\n" in describe(config)
    assert load(write(tmp_path, describe(config))).cluster.secret == ""
    assert "hush" not in refused(None, {"MILLRACE_CLUSTER__SECRET": "hush\0"})


def test_durations_and_sizes_may_have_units(tmp_path: Path) -> None:
    path = write(
        tmp_path,
        '[limits]\npacket_bytes_max = "2MiB"\n[streams.a]\nfilters = ["a"]\nretention_age_s = "7d"\n',
    )
    config = load(path, {"MILLRACE_MQTT__SYS_INTERVAL_S": "1h30m"}, ["storage.free_bytes_min=1GB"])
    assert config.limits.packet_bytes_max == 2 * 1024**2
    assert config.mqtt.sys_interval_s == 5_400
    assert config.storage.free_bytes_min == 10**9
    assert config.stream_specs() == [StreamSpec(name="a", filters=("a",), retention_age_s=7 * 86_400)]


def test_streams_come_from_all_sources_and_are_written_back(tmp_path: Path) -> None:
    text = (
        '[streams."a.b"]\nfilters = ["a/#", "b"]\nshards = 2\n'
        '[streams.pair]\nfilters = ["p"]\nreplication = "primary-backup"\n'
        'primary_backup = {check_interval_ms = "1s", topics = '
        '[{filter = "p", period_ms = 1, deadline_ms = 2}]}\n'
    )
    config = load(write(tmp_path, text), {}, ["streams.a.b.shards=4", "streams.c.filters=x,y"])
    assert {spec.name: (spec.filters, spec.shards) for spec in config.stream_specs()} == {
        "a.b": (("a/#", "b"), 4),
        "pair": (("p",), 1),
        "c": (("x", "y"), 1),
    }
    assert load(write(tmp_path, describe(config))) == config
    assert "streams.c.shards = 'x': expected a whole number" in refused(None, None, "streams.c.shards=x")
    assert "it needs at least one topic filter" in refused(None, None, "streams.c.shards=2")
