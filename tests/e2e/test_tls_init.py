"""`millrace tls init`: what a node and its clients need, and nothing is overwritten unasked."""

import re
import ssl
import stat
from collections.abc import Callable
from pathlib import Path

from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.processes import complaint, millrace

Devices = Callable[..., Device]


def test_a_node_starts_with_what_was_printed(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    directory = tmp_path / "tls"
    done = millrace("tls", "init", str(directory), "--name", "127.0.0.1", "--client", "alice")
    assert done.returncode == 0, done.stderr
    config = tmp_path / "millrace.toml"
    config.write_text(done.stdout[done.stdout.index("[tls]") :])
    doors = ("mqtts", "https")
    listeners = [word for door in doors for word in ("--set", f"listeners.{door}=127.0.0.1:0")]
    peer = ("--peer", "127.0.0.1:0")
    broker = start_broker("--config", str(config), *listeners, *peer)
    device = devices(broker.ports["mqtts"], version=V5)
    device.paho.tls_set(str(directory / "ca.pem"), str(directory / "alice.pem"), str(directory / "alice.key"))
    device.connect()
    url = f"https://127.0.0.1:{broker.ports['https']}"
    done = millrace("client", "list", "--url", url, "--json", MILLRACE_CA_FILE=str(directory / "ca.pem"))
    assert done.returncode == 0 and '"alice"' in done.stdout, (done.stdout, done.stderr)


def test_every_file_is_its_owners_alone(tmp_path: Path) -> None:
    assert millrace("tls", "init", str(tmp_path / "tls")).returncode == 0
    files = list((tmp_path / "tls").iterdir())
    assert {file.name for file in files} >= {"ca.pem", "ca.key", "node.pem", "node.key", "cluster-ca.pem"}
    assert {stat.S_IMODE(file.stat().st_mode) for file in files} == {0o600}


def test_a_certificate_of_a_client_is_none_of_a_node(tmp_path: Path) -> None:
    """Whoever has a certificate of the cluster's authority is a node: clients have another authority."""
    assert millrace("tls", "init", str(tmp_path), "--client", "alice").returncode == 0
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.load_verify_locations(str(tmp_path / "cluster-ca.pem"))
    subjects = [dict(pair[0] for pair in one["subject"])["commonName"] for one in context.get_ca_certs()]  # type: ignore[index, misc]
    assert len(subjects) == 1 and "nodes" in str(subjects[0])
    assert (tmp_path / "cluster-ca.pem").read_text() != (tmp_path / "ca.pem").read_text()


def test_nothing_is_overwritten_unasked(tmp_path: Path) -> None:
    assert millrace("tls", "init", str(tmp_path)).returncode == 0
    before = (tmp_path / "ca.key").read_text()
    done = millrace("tls", "init", str(tmp_path))
    assert done.returncode != 0 and "--yes" in complaint(done)
    assert (tmp_path / "ca.key").read_text() == before
    assert millrace("tls", "init", str(tmp_path), "--yes").returncode == 0
    assert (tmp_path / "ca.key").read_text() != before


def test_wrong_names_are_told(tmp_path: Path) -> None:
    for words in (("--name", "two words"), ("--client", "../ann"), ("--client", "node")):
        done = millrace("tls", "init", str(tmp_path / "tls"), *words)
        assert done.returncode == 2 and words[1] in complaint(done)
    assert not (tmp_path / "tls").exists()


def test_without_the_package_a_sentence_says_what_to_install(tmp_path: Path) -> None:
    """As it is where only what the wheel needs is installed."""
    hidden = tmp_path / "hidden"
    (hidden / "cryptography").mkdir(parents=True)
    (hidden / "cryptography" / "__init__.py").write_text("raise ImportError('not here')\n")
    done = millrace("tls", "init", str(tmp_path / "tls"), PYTHONPATH=str(hidden))
    assert done.returncode == 1
    assert re.search(r"pip install 'millrace\[crypto\]'", complaint(done))
