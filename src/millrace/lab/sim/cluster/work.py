"""What clients do in a simulated cluster, in pieces that a seed combines; each piece brings its own checks.

A piece has its own topics and its own history. The world asks it in this order: is everybody ready; begin;
after healing, is everything answered, has everything come; then `examine`, where something must be asked of
the nodes, and `check`. Whatever is wrong is raised as a Violation that names the promise.
"""

import random
from collections import Counter
from typing import Any

from millrace.lab.sim.cluster.checks import Logs, check_once_and_in_order, check_received, missing
from millrace.lab.sim.cluster.mqtt_clients import Client, History, Publisher, Subscriber
from millrace.lab.sim.cluster.scene import Scene
from millrace.types import Version


class Work:
    """A piece with nothing to do; the others say what differs."""

    def __init__(self, world: Scene, rng: random.Random) -> None:
        self.world = world
        self.rng = rng
        self.history = History()
        self.publishers: list[Publisher] = []
        self.subscribers: list[Subscriber] = []

    @property
    def clients(self) -> list[Client]:
        return [*self.publishers, *self.subscribers]

    def more(self, name: str, **also: Any) -> dict[str, Any]:
        """What every client is made of; its chance is its own."""
        return {
            "rng": self.world.chance(f"client {name}"),
            "nodes": self.world.addresses,
            "history": self.history,
            "note": self.world.note,
            "version": self.rng.choice((Version.MQTT_3_1_1, Version.MQTT_5)),
            "is_wandering": self.world.plan.is_wandering,
            **also,
        }

    def add_publisher(self, name: str, topic: str, qos: int, **also: Any) -> None:
        loop = self.world.client_loop()
        count = self.world.plan.messages
        one = Publisher(name, loop, topic=topic, qos=qos, count=count, **self.more(name, **also))
        self.publishers.append(one)

    def add_subscriber(self, name: str, filter: str, qos: int, *, is_durable: bool, **also: Any) -> None:
        loop = self.world.client_loop()
        more = self.more(name, **also)
        self.subscribers.append(Subscriber(name, loop, filter=filter, qos=qos, is_durable=is_durable, **more))

    # ------------------------------------------------------------------------------------- the story

    def is_ready(self) -> bool:
        return all(one.is_subscribed for one in self.subscribers)

    def begin(self) -> None:
        for publisher in self.publishers:
            publisher.may_publish = True

    def heal(self) -> None:
        """The faults are over."""
        for client in self.clients:
            client.is_wandering = False

    def is_answered(self) -> bool:
        return all(publisher.is_done for publisher in self.publishers)

    def is_complete(self) -> bool:
        """Whether everybody has what was promised."""
        return True

    def examine(self) -> None:
        """Ask the nodes what only they can tell; called when all is quiet."""

    def is_examined(self) -> bool:
        return True

    def check(self, logs: Logs) -> None:
        logs.check_sent(self.history)

    def describe(self) -> str:
        """What is missing, for people."""
        return ", ".join(f"{p.name}: {p.describe()}" for p in self.publishers if not p.is_done)

    @property
    def operations(self) -> int:
        return len(self.history.acknowledged())


class PubSub(Work):
    """Publishers at QoS 1 and 2; durable subscribers that must get everything; one that need not."""

    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        for i in range(rng.randint(1, 2)):
            for qos in (1, 2):
                self.add_publisher(f"p{qos}{i}", f"q{qos}", qos)
        self.add_subscriber("d1", "q1/#", 1, is_durable=True)
        self.add_subscriber("d2", "q2/#", 2, is_durable=True)
        if rng.random() < 0.5:
            self.add_subscriber("d3", "+/+/+", 2, is_durable=True)
            self.add_subscriber("c1", "#", rng.randint(0, 2), is_durable=False)

    @property
    def _durable(self) -> list[Subscriber]:
        return [s for s in self.subscribers if s.name in self.history.received]

    def is_complete(self) -> bool:
        return not any(missing(self.history, s.name, s.filter) for s in self._durable)

    def check(self, logs: Logs) -> None:
        super().check(logs)
        for one in self._durable:
            shard_of = logs.shard_of if self.world.plan.has_moving_topics else None
            check_received(self.history, one.name, one.filter, one.qos, shard_of)

    def describe(self) -> str:
        """Raises the Violation that explains it, where there is one."""
        for one in self._durable:
            if not self.world.plan.has_moving_topics:
                check_once_and_in_order(self.history, one.name, one.qos)
        lacking = [
            f"{s.name} ({s.protocol.state.value}) lacks {len(found)}, first {found[0].decode()}"
            for s in self._durable
            if (found := missing(self.history, s.name, s.filter))
        ]
        return "; ".join(filter(None, (super().describe(), *lacking)))


class Shared(Work):
    """Members of one shared subscription at several nodes: each message to one of them; without faults
    exactly once, with faults at least once."""

    FILTER = "$share/team/s/#"

    def __init__(self, world: Scene, rng: random.Random) -> None:
        super().__init__(world, rng)
        self.add_publisher("s1", "s", 1)
        self.add_publisher("s2", "s", 2)
        for i in range(rng.randint(2, 4)):
            self.add_subscriber(f"m{i}", self.FILTER, rng.randint(1, 2), is_durable=True)

    def _received(self) -> Counter[bytes]:
        return Counter(p for received in self.history.received.values() for p in received)

    def _missing(self) -> list[bytes]:
        received = self._received()
        return [payload for payload in self.history.acknowledged() if not received[payload]]

    def is_complete(self) -> bool:
        return not self._missing()

    def check(self, logs: Logs) -> None:
        super().check(logs)
        lacking = self._missing()
        if lacking:
            logs.fail("group delivery", f"no member of the group received {lacking[0].decode()}")
        if self.world.plan.is_calm:
            for payload, count in self._received().items():
                if count > 1:
                    logs.fail("group once", f"{payload.decode()} came {count} times without a fault")

    def describe(self) -> str:
        lacking = [payload.decode() for payload in self._missing()]
        text = f"no member has {len(lacking)}, first {lacking[0]}" if lacking else ""
        return "; ".join(filter(None, (super().describe(), text)))
