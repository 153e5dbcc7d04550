"""`millrace start`: run a node in the foreground."""

from typing import Annotated

import typer

from millrace.cli.shared.common import ConfigFile, DataDirectory, Overrides, example, load_config, single

app = single()

_ADDRESS = "HOST:PORT"


def _listener(name: str, help: str) -> typer.models.OptionInfo:
    option: typer.models.OptionInfo = typer.Option(f"--{name}", metavar=_ADDRESS, help=help)
    return option


@app.command(
    epilog=example(
        "millrace start",
        "millrace start --data /var/lib/millrace --mqtt 0.0.0.0:1883 --set access.anonymous=never",
        "millrace start --config /etc/millrace/millrace.toml --peer 10.0.0.2:18832 --join 10.0.0.1:18832",
    )
)
def start(
    config: ConfigFile = None,
    node_id: Annotated[str | None, typer.Option(metavar="ID", help="Name of this node.")] = None,
    data: DataDirectory = None,
    mqtt: Annotated[str | None, _listener("mqtt", "MQTT over TCP.")] = None,
    mqtts: Annotated[str | None, _listener("mqtts", "MQTT over TLS.")] = None,
    ws: Annotated[str | None, _listener("ws", "MQTT over WebSocket.")] = None,
    http: Annotated[str | None, _listener("http", "HTTP.")] = None,
    peer: Annotated[str | None, _listener("peer", "Links from other nodes.")] = None,
    text: Annotated[str | None, _listener("text", "The text protocol, for netcat and telnet.")] = None,
    join: Annotated[
        list[str] | None, typer.Option("--join", metavar=_ADDRESS, help="A node of the cluster to join.")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", metavar="N", min=1, max=64, help="Nodes to run, at most one a core.")
    ] = 1,
    end_with_input: Annotated[
        bool, typer.Option("--end-with-input", hidden=True, help="Stop at the end of the standard input.")
    ] = False,
    set_: Overrides = None,
) -> None:
    """Run a broker in the foreground until SIGTERM or Ctrl-C. SIGHUP loads the users file again where
    access.users_import says so.

    With --workers it runs N nodes that share the ports for MQTT, WebSocket and text, and starts again one
    that dies. The HTTP and peer ports of a further node are 10 above those of the one before, and its data is
    in workers/ of the data directory."""
    named = [*(set_ or ())]
    if data is not None:
        named.append(f"node.data={data}")
    for key, value in (
        ("node.id", node_id),
        ("listeners.mqtt", mqtt),
        ("listeners.mqtts", mqtts),
        ("listeners.ws", ws),
        ("listeners.http", http),
        ("listeners.peer", peer),
        ("listeners.text", text),
        ("cluster.join", ",".join(join) if join else None),
    ):
        if value is not None:
            named.append(f"{key}={value}")
    if workers > 1:
        from millrace.local_cluster import workers as several

        settings = load_config(config, overrides=named)
        several.run(settings, ["--config", str(config)] if config else [], named, workers)
        return
    from millrace.node.loading import uncollected

    with uncollected():
        settings = load_config(config, overrides=named)
        from millrace.node import run as node

    if end_with_input:
        node.end_with_input()
    node.run(settings, node.announce_on_stdout)
