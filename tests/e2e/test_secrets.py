"""No secret is in a process list, a log, an error, an answer or `millrace config`."""

import json
import os
from collections.abc import Callable
from pathlib import Path

from e2e.conftest import StartBroker
from e2e.device import V5, Device
from e2e.http_calls import call
from e2e.processes import millrace
from e2e.test_identity import jwt

Devices = Callable[..., Device]

SECRETS = {
    "cluster": "cluster-secret-Zq8",
    "password": "password-secret-Zq8",
    "wrong": "wrong-secret-Zq8",
    "jwt": "jwt-secret-Zq8-jwt-secret-Zq8-jwt-secret",
}
MARK = "secret-Zq8"


def command_lines() -> str:
    """What `ps` shows of every process that can be seen."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                found.append((entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace"))
            except OSError:
                continue
    return "\n".join(found)


def test_nothing_secret_can_be_read_anywhere(
    start_broker: StartBroker, devices: Devices, tmp_path: Path
) -> None:
    """Every way in is used, rightly and wrongly, with the log at its most talkative."""
    keys = tmp_path / "jwt.key"
    keys.write_text(SECRETS["jwt"])
    (tmp_path / "hook_of_ours.py").write_text("def check(login):\n    return None\n")
    settings = (
        f"jwt.keys_file={keys}",
        "log.level=debug",
        "listeners.text=127.0.0.1:0",
        "audit.topic=audit",
        "access.hook=hook_of_ours:check",
    )
    broker = start_broker(
        "--peer",
        "127.0.0.1:0",
        *(word for value in settings for word in ("--set", value)),
        MILLRACE_CLUSTER__SECRET=SECRETS["cluster"],
        PYTHONPATH=str(tmp_path),
    )
    shown: list[str] = []

    def run(*words: str, stdin: str = "", user: str = "", password: str = "") -> None:
        url = broker.url.replace("//", f"//{user}@") if user else broker.url
        done = millrace(*words, stdin=stdin, MILLRACE_URL=url, MILLRACE_PASSWORD=password)
        shown.append(done.stdout + done.stderr)

    add = ("user", "add", "root", "--role", "admin", "--password-stdin")
    run(*add, stdin=f"{SECRETS['password']}\n")
    run("user", "list", user="root", password=SECRETS["password"])
    run("user", "list", "--json", user="root", password=SECRETS["wrong"])
    run("pub", "a", "b", "--url", f"mqtt://root:{SECRETS['wrong']}@127.0.0.1:{broker.port}")
    run("status", "--url", f"http://root:{SECRETS['wrong']}@127.0.0.1:{broker.ports['http']}")
    run("status", "--url", f"http://root:{SECRETS['wrong']}@127.0.0.1:0:0")
    token = millrace(
        "token",
        "create",
        "t1",
        "--user",
        "root",
        "--json",
        MILLRACE_URL=broker.url.replace("//", "//root@"),
        MILLRACE_PASSWORD=SECRETS["password"],
    )
    secret = json.loads(token.stdout)["token"] if token.returncode == 0 else "mrt_none"
    for password in (SECRETS["password"], SECRETS["wrong"], secret, jwt("root")):
        devices(broker.port, version=V5, user=("root", password)).try_connect()
    signed = jwt("root")
    for scheme in (f"Bearer {secret}", f"Bearer {signed}", f"Bearer {SECRETS['wrong']}"):
        for path in ("/v1/users", "/v1/tokens", "/status", "/v1/events", "/metrics"):
            shown.append(call(broker.ports["http"], "GET", path, Authorization=scheme).body.decode())
    for words in (("config",), ("config", "--json"), ("config", "--set", "cluster.secret_file=x")):
        done = millrace(*words, MILLRACE_CLUSTER__SECRET=SECRETS["cluster"])
        shown.append(done.stdout + done.stderr)
    shown += [broker.log, command_lines()]
    for text in shown:
        lines = [line for line in text.splitlines() if MARK in line or secret in line or signed in line]
        assert lines == []


def test_a_secret_on_the_command_line_is_refused(tmp_path: Path) -> None:
    """Whoever looks at the processes of the machine would see it."""
    done = millrace("start", "--data", str(tmp_path), "--set", f"cluster.secret={SECRETS['cluster']}")
    assert done.returncode == 2
    assert "MILLRACE_CLUSTER__SECRET" in done.stderr and MARK not in done.stderr
