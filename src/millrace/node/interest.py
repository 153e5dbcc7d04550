"""What clients of one node want of messages that no log carries: announced to the others, forwarded once.

Each node tells the others which filters have a subscriber here: the first one is announced, the last one
withdrawn (REQUIREMENTS.md E3), and everything is told again when a link opens (E7). A node that takes in a
message that is not logged sends it to the nodes that want it, and they give it to their own clients only:
nothing is ever passed on (E2).
"""

import json
import logging
from collections.abc import Callable

from millrace.broker.machine import Broker
from millrace.errors import MalformedPacket
from millrace.node.replicas import KIND_INTEREST, KIND_PUBLISH, Replicas

log = logging.getLogger("millrace.interest")

_QOS, _V5, _RETAIN, _GROUP = 0x03, 0x04, 0x08, 0x10


class Interest:
    def __init__(
        self, broker: Broker, replicas: Replicas, now_ms: Callable[[], int], wake: Callable[[], None]
    ) -> None:
        self._broker = broker
        self._replicas = replicas
        self._now_ms = now_ms
        self._wake = wake
        self._ours: set[str] = set()
        self._theirs: dict[str, set[str]] = {}
        replicas.on_link_open = self._link_opened
        replicas.on_link_closed = self._link_closed
        replicas.on_interest = self._on_interest
        replicas.on_publish = self._on_publish

    def flush(self) -> None:
        """Tell what changed and pass on what others want. Called once per turn of the loop."""
        broker = self._broker
        if broker.interest_changes:
            changes, broker.interest_changes = broker.interest_changes, []
            self._note(changes)
        relays = broker.inbound.relays
        if relays:
            broker.inbound.relays = []
            links = self._replicas.links
            for peer, run, group in relays:
                if links is None:
                    continue
                head = run.qos | (_V5 if run.v5 else 0) | (_RETAIN if run.retain else 0)
                if group:
                    key = group.encode()
                    prefix = bytes((head | _GROUP,)) + len(key).to_bytes(4, "little") + key
                else:
                    prefix = bytes((head,))
                links.send(peer, KIND_PUBLISH, 0, prefix + run.data)

    def _note(self, changes: list[tuple[str, bool]]) -> None:
        before = set(self._ours)
        for filter, is_wanted in changes:
            (self._ours.add if is_wanted else self._ours.discard)(filter)
        added, removed = self._ours - before, before - self._ours
        if (added or removed) and self._replicas.links is not None:
            body = json.dumps({"add": sorted(added), "remove": sorted(removed)}).encode()
            for peer in self._replicas.links.peers():
                self._replicas.links.send(peer, KIND_INTEREST, 0, body)

    def _link_opened(self, peer: str) -> None:
        if self._replicas.links is not None:
            body = json.dumps({"all": sorted(self._ours)}).encode()
            self._replicas.links.send(peer, KIND_INTEREST, 0, body)

    def _link_closed(self, peer: str) -> None:
        self._change(peer, set())

    def _on_interest(self, peer: str, body: bytes) -> None:
        try:
            fields = json.loads(body)
            known = self._theirs.get(peer, set())
            if "all" in fields:
                wanted = set(fields["all"])
            else:
                wanted = (known | set(fields["add"])) - set(fields["remove"])
        except (ValueError, KeyError, TypeError) as error:
            raise MalformedPacket(f"interest that cannot be read: {error}") from None
        self._change(peer, wanted)

    def _change(self, peer: str, wanted: set[str]) -> None:
        router = self._broker.router
        known = self._theirs.get(peer, set())
        for filter in sorted(known - wanted):
            router.set_interest(peer, filter, False)
        for filter in sorted(wanted - known):
            router.set_interest(peer, filter, True)
        self._theirs[peer] = wanted

    def _on_publish(self, peer: str, body: bytes) -> None:
        if not body:
            raise MalformedPacket("an empty publish")
        head = body[0]
        inbound = self._broker.inbound
        form = (head & _QOS, bool(head & _V5), bool(head & _RETAIN), self._now_ms())
        try:
            if head & _GROUP:
                end = 5 + int.from_bytes(body[1:5], "little")
                group = self._broker.groups.get(body[5:end].decode())
                if group is not None:
                    inbound.relayed_to_group(group, body[end:], *form)
            else:
                inbound.relayed(body[1:], *form)
        except (ValueError, IndexError) as error:
            raise MalformedPacket(f"packets that cannot be read: {error}") from None
        self._wake()
