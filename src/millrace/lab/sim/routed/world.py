"""A simulated cluster of routed nodes: rounds of faults under load, and after each a quiet time of exams.

In a round clients subscribe, publish and wander while links break and are made again, drop what they cannot
take, nodes are cut off, crash and come back, and clocks differ. What must hold at any moment is watched at
any moment: only the node that took a message in sends it to others, once to each (no loop); a client gets a
message at most once; counts are what the clients hold.

Then everything heals, and within a bounded time every node must know every other's filters and all must
retain the same, nothing older than what a living node wrote. Then, while links hold: every message reaches
every matching subscriber exactly once and nobody else, whichever node it is published at; the last of
several retained writes wins everywhere, however the clocks differ, and of two at the same instant the same
one; and a fresh subscriber at any node gets exactly the newest retained messages.
"""

from random import Random

from millrace.broker.topics.filters import matches
from millrace.broker.topics.trees import split_share
from millrace.lab.sim.routed.host import RoutedClient, RoutedHost
from millrace.lab.sim.routed.links import RoutedLinks
from millrace.lab.sim.surroundings.clock import US_PER_S, Clock
from millrace.lab.sim.trace import Trace
from millrace.lab.sim.verdict import Counts, RunResult, judge
from millrace.lab.sim.violation import Violation
from millrace.node.peers.messages import NodeMessage, RelayedRun
from millrace.replication.routed.messages import Stamp, Value

_CALLS_MAX = 400_000
_HEAL_US_MAX = 12 * US_PER_S
_QUIET_US = 300_000
_TOPICS = ("a", "a/b", "a/c", "a/b/c", "d/e", "d/e/f/g", "h")
_FILTERS = (*_TOPICS, "#", "a/#", "a/+", "+/b", "+/e/#", "d/+/f/+", "+", "a/b/#")
_MEMBER = "g"
_GROUPS = ("$share/g/a/#", "$share/g/h", "$share/k/a/#")


class RoutedWorld:
    def __init__(self, seed: int, trace: Trace | None) -> None:
        self._seed = seed
        self.trace = trace
        self.rng = self._chance("plan")
        self.clock = Clock(calls_max=_CALLS_MAX)
        self.links = RoutedLinks(self.clock, self._chance("network"), self._watch)
        count = self.rng.choice((2, 3, 3, 4))
        skew_ms = self.rng.choice((0, 0, 50, 5_000))
        self.hosts = [
            RoutedHost(
                f"n{number}",
                clock=self.clock,
                links=self.links,
                rng=self._chance(f"host {number}"),
                skew_ms=self.rng.randint(-skew_ms, skew_ms),
                on_write=self._on_write,
            )
            for number in range(count)
        ]
        self.by_name = {host.name: host for host in self.hosts}
        self.operations = self.faults = 0
        self._texts = 0
        self._clients = 0
        # Which node took a message in, and to whom it was sent.
        self._origin: dict[str, str] = {}
        self._sent: set[tuple[str, str]] = set()
        # Retained writes by topic: stamp -> (text, the writer, and its life at that moment).
        self._writes: dict[str, dict[Stamp, tuple[str, str, int]]] = {topic: {} for topic in _TOPICS}
        # Pairs that are kept separated for now.
        self._separated: set[frozenset[str]] = set()

    def _chance(self, actor: str) -> Random:
        return Random(f"{self._seed} {actor}")

    def note(self, text: str) -> None:
        if self.trace is not None:
            self.trace.note(self.clock.now_us, "", text)

    # ------------------------------------------------------------------------------------- watching

    def _watch(self, sender: str, to: str, message: NodeMessage) -> None:
        """Every message as it leaves."""
        if self.trace is not None:
            shown = f"{len(message.packets)} B" if isinstance(message, RelayedRun) else repr(message)
            self.trace.note(self.clock.now_us, sender, f"> {to} {shown}")
        if isinstance(message, RelayedRun):
            text = message.packets.rsplit(b"|", 1)[-1].decode()
            is_group = bool(message.group)
        elif isinstance(message, Value) and message.is_live and message.value is not None:
            text, is_group = message.value.rsplit(b"|", 1)[-1].decode(), False
        else:
            return
        if text not in self._origin:
            return
        if self._origin[text] != sender:
            raise Violation("no loop", f"{text} came in at {self._origin[text]} and was sent on by {sender}")
        if not is_group:
            if (text, to) in self._sent:
                raise Violation("one copy", f"{sender} sent {text} to {to} twice")
            self._sent.add((text, to))

    def _on_write(self, host: str, topic: str, text: str, stamp: Stamp) -> None:
        self._writes[topic][stamp] = (text, host, self.by_name[host].life)

    # ---------------------------------------------------------------------------------- what happens

    def _text(self, host: RoutedHost, *, is_deletion: bool = False) -> str:
        self._texts += 1
        text = f"{'x' if is_deletion else '|'}{self._texts}"
        self._origin[text.lstrip("|")] = host.name
        return text

    def _some_client(self, host: RoutedHost) -> RoutedClient:
        if not host.clients:
            self._clients += 1
            return host.connect(f"c{self._clients}")
        return host.clients[self.rng.choice(sorted(host.clients))]

    def _act(self) -> None:
        """One thing that a client does."""
        host = self.rng.choice(self.hosts)
        if not host.is_up:
            return
        self.operations += 1
        client = self._some_client(host)
        chance = self.rng.random()
        topic = self.rng.choice(_TOPICS)
        if chance < 0.04:
            # A member of one group and nothing else: whoever also subscribes plainly gets both copies.
            self._clients += 1
            host.subscribe(host.connect(f"{_MEMBER}{self._clients}"), self.rng.choice(_GROUPS), 1)
        elif chance < 0.3 and not client.name.startswith(_MEMBER):
            filter = self.rng.choice(_FILTERS)
            self.note(f"{client.name}@{host.name} subscribes {filter}")
            host.subscribe(client, filter, self.rng.randrange(3))
        elif chance < 0.45 and client.filters:
            filter = self.rng.choice(client.filters)
            self.note(f"{client.name}@{host.name} unsubscribes {filter}")
            host.unsubscribe(client, filter)
        elif chance < 0.5:
            self.note(f"{client.name}@{host.name} goes")
            host.disconnect(client.name)
        elif chance < 0.55:
            self._clients += 1
            host.connect(f"c{self._clients}")
        elif chance < 0.75:
            self._retain(host, client, topic)
        else:
            host.publish(client, topic, self._text(host), self.rng.randrange(3))

    def _retain(self, host: RoutedHost, client: RoutedClient, topic: str) -> str:
        text = self._text(host, is_deletion=self.rng.random() < 0.3)
        self.note(f"{client.name}@{host.name} retains {text} on {topic}")
        host.publish(client, topic, text, self.rng.randrange(3), retain=True)
        return text

    def _fault(self) -> None:
        """One thing that goes wrong."""
        self.faults += 1
        host, other = self.rng.sample(self.hosts, 2)
        match self.rng.randrange(5):
            case 0:
                self.note(f"link {host.name}-{other.name} breaks")
                self.links.cut(host.name, other.name)
            case 1:
                self.note(f"link {host.name}>{other.name} drops")
                self.links.pause(host.name, other.name, self.rng.randrange(50_000, US_PER_S))
            case 2:
                separated_us = self.rng.randrange(100_000, 3 * US_PER_S)
                self.note(f"{host.name} is cut off")
                for peer in self.hosts:
                    if peer is not host:
                        pair = frozenset((host.name, peer.name))
                        self._separated.add(pair)
                        self.links.cut(host.name, peer.name)
                        self.clock.after(separated_us, self._separated.discard, pair)
            case 3:
                self._crash(host)
            case _:
                # Everything told again and again, and some of it still under way when the teller dies.
                for _ in range(3):
                    self.links.cut(host.name, other.name)
                    self.links.connect(host, other)
                    self.links.cut(host.name, other.name)
                if self.rng.random() < 0.5:
                    self._crash(host)

    def _crash(self, host: RoutedHost) -> None:
        if not host.is_up:
            return
        self.note(f"{host.name} crashes")
        for peer in self.hosts:
            if peer is not host:
                self.links.cut(host.name, peer.name)
        host.crash()
        self.clock.after(self.rng.choice((1_000, 20_000, US_PER_S)), self._restart, host)

    def _restart(self, host: RoutedHost) -> None:
        if not host.is_up:
            self.note(f"{host.name} is back")
            host.start()
            self._link()

    def _link(self) -> None:
        for position, host in enumerate(self.hosts):
            for other in self.hosts[position + 1 :]:
                if frozenset((host.name, other.name)) not in self._separated:
                    self.links.connect(host, other)

    # ---------------------------------------------------------------------------------------- story

    def play(self) -> None:
        for host in self.hosts:
            host.start()
        self._link()
        for _ in range(self.rng.randint(1, 3)):
            self._storm()
            self._heal()
            self._exam_delivery()
            self._exam_retained()
        self._exam_fresh()

    def _pass(self, us: int) -> None:
        self.clock.run(self.clock.now_us + us)

    def _storm(self) -> None:
        steps = self.rng.randint(20, 60)
        fault_rate = self.rng.choice((0.05, 0.2, 0.4))
        for _ in range(steps):
            self._act()
            if self.rng.random() < fault_rate:
                self._fault()
            if self.rng.random() < 0.5:
                self._link()
            self._pass(self.rng.choice((500, 5_000, 100_000)))

    def _heal(self) -> None:
        self.note("all heals")
        self._separated.clear()
        for host in self.hosts:
            self._restart(host)
        self._link()
        if not self.clock.run(self.clock.now_us + _HEAL_US_MAX, self._is_settled):
            raise Violation("recovery", self._unsettled() or "it came too late")
        # What was read late from connections that are gone must not undo it.
        self._pass(2 * US_PER_S)
        self.clock.run(self.clock.now_us + _HEAL_US_MAX, self._is_settled)
        if not self._is_settled():
            raise Violation("recovery", self._unsettled())
        self._check_newest()

    def _is_settled(self) -> bool:
        return not self._unsettled()

    def _unsettled(self) -> str:
        """What is not as it must be after healing; empty where nothing is."""
        for host in self.hosts:
            for other in self.hosts:
                if other is not host:
                    known, real = host.known_of(other.name), set(other.held())
                    if known != real:
                        return f"{host.name} knows {known} of {other.name}, whose clients hold {real}"
            first = self.hosts[0]
            if host.kept() != first.kept():
                return f"{host.name} retains {host.kept()}, {first.name} {first.kept()}"
        return ""

    def _check_newest(self) -> None:
        """All agree; nothing that a living node wrote may have given way to anything older."""
        kept = self.hosts[0].kept()
        for topic, writes in self._writes.items():
            sure = [stamp for stamp, (_, host, life) in writes.items() if self.by_name[host].life == life]
            if not sure:
                continue
            newest = max(sure)
            found = [stamp for stamp, (text, *_) in writes.items() if text == kept.get(topic)]
            deleted = [stamp for stamp, (text, *_) in writes.items() if text.startswith("x")]
            if max(found if topic in kept else deleted, default=(0, "")) < newest:
                raise Violation(
                    "newest retained",
                    f"{topic} is {kept.get(topic, 'empty')}; {writes[newest][0]} was written later, {newest}",
                )

    def _exam_delivery(self) -> None:
        """While links hold: exactly one copy to everybody who wants it, and none to anybody else."""
        topics: dict[str, str] = {}
        for host in self.hosts:
            publisher = self._some_client(host)
            for topic in _TOPICS:
                text = self._text(host)
                topics[text] = topic
                host.publish(publisher, topic, text, self.rng.randrange(3))
                self._pass(self.rng.choice((0, 1_000)))
        self._pass(_QUIET_US)
        clients = [(host.name, client) for host in self.hosts for client in host.clients.values()]
        for text, topic in topics.items():
            shared: dict[str, int] = {}
            for at, client in clients:
                count = client.got.get(text, 0)
                if client.name.startswith(_MEMBER):
                    for filter in client.filters:
                        shared[filter] = shared.get(filter, 0) + count
                    continue
                wanted = int(any(matches(filter, topic) for filter in client.filters))
                if count != wanted:
                    raise Violation(
                        "exactly one",
                        f"{client.name} at {at} got {text} on {topic} {count} times, not {wanted}",
                    )
            for filter, count in shared.items():
                if count != int(matches(split_share(filter)[1], topic)):
                    raise Violation("one of a group", f"{filter} got {text} on {topic} {count} times")

    def _exam_retained(self) -> None:
        """Writes one after the other, each after the one before was seen; then two at the same instant."""
        topic = self.rng.choice(_TOPICS)
        text = ""
        for host in self.rng.sample(self.hosts, len(self.hosts)):
            text = self._retain(host, self._some_client(host), topic)
            self._pass(_QUIET_US)
            self._agree(topic, "" if text.startswith("x") else text)
        one, two = self.rng.sample(self.hosts, 2)
        written = [self._retain(host, self._some_client(host), topic) for host in (one, two)]
        self._pass(_QUIET_US)
        found = {host.kept().get(topic, "") for host in self.hosts}
        if len(found) != 1 or not found <= {"", *written}:
            raise Violation("retained tie", f"{topic} after {written} at one instant: {sorted(found)}")

    def _agree(self, topic: str, text: str) -> None:
        for host in self.hosts:
            if host.kept().get(topic, "") != text:
                found = host.kept().get(topic, "nothing")
                raise Violation("newest retained", f"{host.name} has {found} for {topic}, last was {text}")

    def _exam_fresh(self) -> None:
        """A fresh subscriber at any node gets the newest retained messages, all and only those [E5]."""
        for host in self.hosts:
            self._clients += 1
            client = host.connect(f"c{self._clients}")
            host.subscribe(client, "#", 1)
            self._pass(_QUIET_US)
            if client.retained != self.hosts[0].kept():
                raise Violation("fresh subscriber", f"at {host.name}: {client.retained}")

    def counts(self) -> Counts:
        return Counts(operations=self.operations, faults=self.faults, messages=self.links.messages)


def run_routed_seed(seed: int, trace: Trace | None = None) -> RunResult:
    world = RoutedWorld(seed, trace)
    return judge(seed, world)
