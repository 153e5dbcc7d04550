"""No peer port without identity [rule 32]: a secret that is not empty, or mutual TLS."""

import asyncio
import stat
from pathlib import Path
from random import Random

import pytest

from millrace.errors import ConfigError
from millrace.node.config import load
from millrace.node.peers.links import Links
from millrace.node.peers.messages import Identity
from millrace.node.peers.secret import make_secret_file, secret_of

PEER = "listeners.peer=127.0.0.1:0"


def test_a_peer_port_without_secret_or_tls_is_refused_with_what_to_do() -> None:
    with pytest.raises(ConfigError, match=r"listeners\.peer needs cluster\.secret_file.*millrace init"):
        load(None, {}, [PEER])


@pytest.mark.parametrize("given", ["SECRET", "SECRET_FILE"])
def test_a_peer_port_with_a_secret_is_accepted(given: str) -> None:
    assert load(None, {f"MILLRACE_CLUSTER__{given}": "shared by all"}, [PEER]).listeners.peer is not None


def test_a_secret_stands_in_one_place_only() -> None:
    with pytest.raises(ConfigError, match="set one of them"):
        load(None, {"MILLRACE_CLUSTER__SECRET": "a"}, [PEER, "cluster.secret_file=b"])


def test_links_refuse_to_prove_an_empty_secret() -> None:
    """Also where a program builds them past the configuration: an HMAC with an empty key proves nothing."""

    async def scene() -> None:
        with pytest.raises(ConfigError, match="identity"):
            Links(
                replica="a",
                identity=lambda: Identity("a", "a", "", ""),
                secret=b"",
                random=Random(1),
                on_frame=lambda replica, tag, number, body: None,
                on_open=lambda replica: None,
                on_close=lambda replica: None,
                on_silence=lambda replica: None,
                why_not=lambda identity: "",
            )

    asyncio.run(scene())


def test_a_secret_file_is_made_once_for_its_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "cluster.secret"
    make_secret_file(path)
    first = path.read_text()
    make_secret_file(path)
    assert path.read_text() == first and len(first.strip()) == 64
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    cluster = load(None, {}, [PEER, f"cluster.secret_file={path}"]).cluster
    assert secret_of(cluster) == first.strip().encode()


@pytest.mark.parametrize("content", [None, "", " \n"], ids=["missing", "empty", "blank"])
def test_a_secret_file_that_says_nothing_is_an_error(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "cluster.secret"
    if content is not None:
        path.write_text(content)
    cluster = load(None, {}, [PEER, f"cluster.secret_file={path}"]).cluster
    with pytest.raises(ConfigError, match=r"cluster\.secret_file"):
        secret_of(cluster)
