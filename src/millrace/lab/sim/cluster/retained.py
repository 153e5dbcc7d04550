"""Retained messages: whichever node is asked, a fresh subscriber gets the newest, or nothing once deleted.

The newest is the last one in the log. Publishers replace and delete; at the end a new client at each node
subscribes and compares.
"""

import random
from typing import Any

from millrace.client.conversation.events import Delivered, Event, Published, Subscribed
from millrace.lab.sim.cluster.checks import Logs
from millrace.lab.sim.cluster.mqtt_clients import Client, Publisher
from millrace.lab.sim.cluster.scene import Scene
from millrace.lab.sim.cluster.work import Work
from millrace.lab.sim.surroundings.loop import SimLoop
from millrace.types import Message, Subscription

_LOOK_S = 1.0


class Keeper(Publisher):
    """Publishes retained messages to a few topics that it shares with others; now and then it deletes."""

    def __init__(self, name: str, loop: SimLoop, **more: Any) -> None:
        super().__init__(name, loop, **more)
        self._deletions = 0

    def _message(self, topic: str, payload: bytes) -> Message:
        return Message(topic=topic, payload=payload, qos=self._qos, retain=True)

    def _work(self) -> None:
        super()._work()
        if self.may_publish and self._left and self._rng.random() < 0.1:
            number = -1 - self._deletions
            self._deletions += 1
            self._waiting[number] = b""
            topic = f"{self._topic}/{self.name}/{self._rng.randint(0, 1)}"
            self.protocol.publish(number, Message(topic=topic, payload=b"", qos=self._qos, retain=True))

    def _on_published(self, event: Published) -> None:
        if event.ticket < 0:
            del self._waiting[event.ticket]
        else:
            super()._on_published(event)


class Looker(Client):
    """A fresh client at one node that asks what is retained."""

    def __init__(self, name: str, loop: SimLoop, **more: Any) -> None:
        super().__init__(name, loop, is_durable=False, **more)
        self.found: dict[str, bytes] = {}
        self.is_done = False
        self._is_asked = False

    def _on_connected(self) -> None:
        self.found.clear()
        if self._is_asked:
            # After a lost connection the client subscribes again by itself.
            return
        self._is_asked = True
        self.protocol.subscribe(0, 1, (Subscription(filter="r/#", qos=1),))

    def _on_subscribed(self, event: Event) -> None:
        if isinstance(event, Subscribed):
            self.loop.call_later(_LOOK_S, self._finish)

    def _on_delivered(self, event: Delivered) -> None:
        self.found[event.message.topic] = bytes(event.message.payload)
        self.protocol.take(event.message)

    def _finish(self) -> None:
        if self.is_connected:
            self.is_done = True


class RetainedWork(Work):
    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        for qos in (1, 2):
            name = f"r{qos}"
            more = self.more(name)
            keeper = Keeper(
                name, world.client_loop(), topic="r", qos=qos, count=world.plan.messages // 2, **more
            )
            self.publishers.append(keeper)
        self._lookers: list[tuple[str, Looker]] = []
        self._rounds = 0

    def examine(self) -> None:
        self._rounds += 1
        self._lookers = []
        for host in self.world.members:
            name = f"look{self._rounds}-{host.name}"
            more = self.more(name, nodes=[host.address], is_wandering=False)
            self._lookers.append((host.name, Looker(name, self.world.client_loop(), **more)))

    def is_examined(self) -> bool:
        return all(looker.is_done for _, looker in self._lookers)

    def check(self, logs: Logs) -> None:
        logs.check_sent(self.history)
        for topic in sorted({m.topic for m in logs.messages() if m.topic.startswith("r/")}):
            last = {m.shard: m for m in logs.messages() if m.topic == topic}
            # Where streams change a topic may come back to a shard: the last of one of them is the newest.
            newest = {m.payload or None for m in last.values()}
            found = {name: looker.found.get(topic) for name, looker in self._lookers}
            if len(set(found.values())) != 1 or not set(found.values()) <= newest:
                logs.fail("retained", f"{topic}: the nodes retain {found}, the log ends with {newest}")
