"""The picture of `millrace top`: what the nodes answered, as lines of a given width.

Values in, lines out: the terminal and the clock are elsewhere.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from millrace.cli.shared.tables import duration, number, shortened, size, table, when

TABS = ("nodes", "streams", "clients", "groups")
_NODE_COLUMNS = (
    "node", "state", "leads", "clients", "in/s", "out/s", "cpu", "memory", "disk free", "lag ms", "up",
    "note",
)  # fmt: skip
_NODE_OPTIONAL = ("up", "lag ms", "disk free", "memory", "out/s")
_STREAM_COLUMNS = (
    "stream",
    "replication",
    "shards",
    "replicas",
    "messages",
    "stored",
    "in/s",
    "leaders",
    "note",
)
_STREAM_OPTIONAL = ("replicas", "shards", "stored", "leaders", "replication")
_CLIENT_COLUMNS = (
    "client", "user", "node", "address", "door", "subscriptions", "in flight", "queued", "received", "sent",
)  # fmt: skip
_CLIENT_OPTIONAL = ("received", "sent", "in flight", "door", "user", "address")
_GROUP_COLUMNS = ("group", "filters", "lag at most", "in flight", "dead letter")
_GROUP_OPTIONAL = ("dead letter",)


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What was last heard. `trouble` says why there is nothing newer."""

    overview: Mapping[str, Any] = field(default_factory=dict)
    clients: Sequence[Mapping[str, Any]] = ()
    groups: Sequence[Mapping[str, Any]] = ()
    trouble: str = ""


def heading(picture: Picture, width: int | None) -> list[str]:
    """Two lines on the whole cluster, and the trouble if there is any."""
    overview = picture.overview
    lines = []
    if overview:
        totals = overview["totals"]
        up = sum(node["state"] == "up" for node in overview["nodes"])
        unsettled = "" if overview["is_settled"] else "  (not settled)"
        lines.append(
            f"cluster {overview['cluster']}  {when(overview['time_us'])}  "
            f"leader {overview['leader'] or 'none'}  {up} of {len(overview['nodes'])} nodes up{unsettled}"
        )
        lines.append(
            f"{number(totals['clients'])} clients  {number(totals['sessions'])} sessions  "
            f"in {number(totals['in_messages_s'])}/s {size(totals['in_bytes_s'])}/s  "
            f"out {number(totals['out_messages_s'])}/s {size(totals['out_bytes_s'])}/s  "
            f"stored {size(totals['stored_bytes'])}"
        )
    if picture.trouble:
        lines.append(f"! {picture.trouble}")
    return lines if width is None else [shortened(line, width) for line in lines]


def body(picture: Picture, tab: str, width: int | None) -> list[str]:
    """The table of a tab, its heading first."""
    if tab == "nodes":
        rows = [_node(node) for node in picture.overview.get("nodes", ())]
        return _table(rows, _NODE_COLUMNS, _NODE_OPTIONAL, width)
    if tab == "streams":
        rows = [_stream(stream) for stream in picture.overview.get("streams", ())]
        return _table(rows, _STREAM_COLUMNS, _STREAM_OPTIONAL, width)
    if tab == "clients":
        return _table([_client(row) for row in picture.clients], _CLIENT_COLUMNS, _CLIENT_OPTIONAL, width)
    return _table([_group(row) for row in picture.groups], _GROUP_COLUMNS, _GROUP_OPTIONAL, width)


def screen(picture: Picture, tab: str, first: int, width: int, height: int) -> list[str]:
    """Everything, in so many lines: of a long table the part that begins with row `first`."""
    head = heading(picture, width)
    tabs = "  ".join(f"[{name}]" if name == tab else f" {name} " for name in TABS)
    top, *rows = body(picture, tab, width)
    space = max(1, height - len(head) - 4)
    first = max(0, min(first, len(rows) - space))
    shown = rows[first : first + space]
    keys = "Tab/arrows: switch  up/down: scroll  q: quit"
    if len(rows) > space:
        keys = f"{first + 1}-{first + len(shown)} of {len(rows)}  {keys}"
    filling = [""] * (space - len(shown))
    return [*head, tabs, top, *shown, *filling, shortened(keys, width)]


def _table(
    rows: Sequence[Mapping[str, Any]], columns: Sequence[str], optional: Sequence[str], width: int | None
) -> list[str]:
    shown = [name for name in columns if name != "note" or any(row["note"] for row in rows)]
    lines, _ = table(rows, shown, optional=optional, fits=width)
    return lines if rows else [*lines, "(none)"]


def _node(node: Mapping[str, Any]) -> dict[str, Any]:
    state = "draining" if node["is_draining"] and node["state"] == "up" else node["state"]
    row: dict[str, Any] = {
        "node": f"{node['node']}*" if node["leads_meta"] else node["node"],
        "state": state,
        "leads": node["leads"],
        "note": "" if node["is_answering"] else "does not answer",
    }
    figures = node["figures"]
    if figures is not None:
        down = [link["to"] for link in figures["links"] if not link["is_up"]]
        row |= {
            "clients": number(figures["clients"]),
            "in/s": number(figures["in_messages_s"]),
            "out/s": number(figures["out_messages_s"]),
            "cpu": f"{figures['cpu_percent']:.0f}%",
            "memory": size(figures["memory_bytes"]),
            "disk free": size(figures["disk_free_bytes"]),
            "lag ms": figures["loop_lag_ms"],
            "up": duration(figures["uptime_s"]),
            "note": figures["waits_for"] or (f"no link to {' '.join(down)}" if down else ""),
        }
    return row


def _stream(stream: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "stream": stream["name"],
        "replication": stream["replication"],
        "shards": stream["shards"],
        "replicas": stream["replicas"],
        "messages": number(stream["messages"]),
        "stored": size(stream["bytes"]),
        "in/s": number(stream["in_messages_s"]),
        "leaders": stream["leaders"],
        "note": stream["degraded"] if stream["is_degraded"] else "",
    }


def _client(client: Mapping[str, Any]) -> dict[str, Any]:
    return {**client, "client": client["client_id"], "in flight": client["in_flight"]}


def _group(group: Mapping[str, Any]) -> dict[str, Any]:
    return {
        "group": group["name"],
        "filters": group["filters"],
        "lag at most": group["lag"],
        "in flight": group["in_flight"],
        "dead letter": group["dead_letter"],
    }
