"""Links to the other nodes: one connection per pair, made again when it breaks.

Of two nodes the one with the smaller id dials; a newcomer that nobody knows yet dials whoever it was told.
The other one dials as well if nobody has come for a while: it may have moved, so that those who should dial
know only its old address [rule 32]. If both dial at once, both keep the connection of the smaller id.
A connection may look well long after the other side has stopped or the network has failed. So both sides
send a sign of life now and then; a link on which nothing comes counts as silent soon, and is cut and made
anew later, because a connection that the network starved recovers only slowly.

What is sent to a node without a link is dropped and counted, and so is what exceeds the bound of a link's
queue: protocols above expect losses and repair them. Frames of one turn of the loop leave in one write.

With TLS both sides show a certificate of the cluster's own authority before the first byte of ours is read;
the proof of the secret follows all the same. Names in certificates are not compared: whoever has a
certificate of that authority is a node.
"""

import asyncio
import logging
import os
import socket
import ssl
from collections.abc import Callable, Iterable
from random import Random
from typing import Any

from millrace.errors import ConfigError, ProtocolError, RemoteError
from millrace.limits import LINK_QUEUE_BYTES_MAX, UNPROVED_LINKS_MAX
from millrace.node.config import Address
from millrace.node.peers.messages import Identity, SignOfLife
from millrace.node.peers.registry import decode, encode
from millrace.node.peers.relays import Relays
from millrace.node.seldom import Seldom
from millrace.node.tls import FromFiles, PeerContexts
from millrace.version import LEVEL_MIN
from millrace.wire.peer import NONCE_BYTES, Frames, Handshake, Side

log = logging.getLogger("millrace.links")
# Of connections of which nobody knows who is there.
strangers = logging.getLogger("millrace.links.strangers")
strangers.addFilter(Seldom())

_HANDSHAKE_S = 5.0
# The system repeats what a network drops after 1, 3, 7, 15, 31 seconds; after a partition a new attempt is
# sooner.
_CONNECT_S = 2.0
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0
# So long the node with the larger id waits for the other one to dial.
_PATIENCE_S = 1.5
# Two connections that were made within this time of each other are taken for one attempt from each side.
_AT_ONCE_S = 2.0
# Counted in ticks of our own: a node that was itself stopped must not blame the others.
_SIGN_S = 0.25
# Groups that rest hear of it first: what they do then disturbs nobody who hears the other side.
_MISSED_TICKS = 4
_SILENT_TICKS = 6
_CUT_TICKS = 20


class LinkTraffic:
    """What went between this node and another one, over all their links."""

    __slots__ = ("bytes_received", "bytes_sent", "opened")

    def __init__(self) -> None:
        self.bytes_received = self.bytes_sent = self.opened = 0


class Link(asyncio.Protocol):
    """One connection to another node."""

    def __init__(self, links: "Links", side: Side) -> None:
        self._links = links
        nonce = links.random.randbytes(NONCE_BYTES)
        self._handshake: Handshake | None = Handshake(side, links.secret, nonce, links.lowest_level())
        self.refused_for = ""
        """Why this side closed it, before it was known who is at the other end."""
        self._frames = Frames()
        self._out: list[bytes | bytearray] = []
        self._transport: Any = None
        self._is_paused = False
        # Of the socket, where there is a bare one.
        self._descriptor = -1
        self.side = side
        self._made_s = 0.0
        self._quiet_ticks = 0
        # Of this link alone until it is known who is at the other end.
        self.traffic = LinkTraffic()
        self.identity: Identity | None = None
        self.is_closed = False
        self.settled = asyncio.Event()
        """Set once it is known who is at the other end, or that nobody is."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._made_s = self._links.loop.time()
        self._transport.set_write_buffer_limits(high=LINK_QUEUE_BYTES_MAX)
        if self.side is Side.ANSWERED:
            self._links.make_room_for(self)
        connected = transport.get_extra_info("socket")
        if connected is not None and transport.get_extra_info("ssl_object") is None:
            self._descriptor = connected.fileno()
        assert self._handshake is not None
        self._transport.write(self._handshake.hello)
        self._links.loop.call_later(_HANDSHAKE_S, self._check_identity)

    def _check_identity(self) -> None:
        if self.identity is None and not self.is_closed:
            strangers.warning("a link was closed: no proof within %.0f s", _HANDSHAKE_S)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        self._quiet_ticks = 0
        self.traffic.bytes_received += len(data)
        try:
            if self._handshake is not None:
                answer, data = self._handshake.receive(data)
                if answer:
                    self._transport.write(answer)
                if not self._handshake.is_proved:
                    return
                self._handshake = None
                self.send(encode(self._links.identity()))
            for tag, number, body in self._frames.receive(data):
                if self.identity is not None:
                    self._links.on_frame(self.identity.replica, tag, number, body)
                    continue
                first = decode(tag, body)
                if not isinstance(first, Identity):
                    raise ProtocolError("it did not say who it is")
                self.identity = first
                self._links.proved(self)
                self.settled.set()
                if not self._links.accept(self):
                    self.close()
                    return
            if self.identity is not None:
                self._links.after_frames()
        except RemoteError as error:
            (log if self.identity else strangers).warning("a link to %s was closed: %s", self.name, error)
            self.refused_for = str(error)
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self.settled.set()
        self._descriptor = -1
        self._links.lost(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    def is_twin_of(self, other: "Link") -> bool:
        """Whether each side made one of the two, at about the same time."""
        return self.side is not other.side and abs(self._made_s - other._made_s) < _AT_ONCE_S

    @property
    def is_silent(self) -> bool:
        return self._handshake is None and self._quiet_ticks >= _SILENT_TICKS

    def tick(self, sign: bytes | bytearray, *, is_replaceable: bool) -> None:
        """Give a sign of life, and see whether the other side gives any. `is_replaceable`: there is another
        way to it, so that nobody has to wait for a link that is silent."""
        self._quiet_ticks += 1
        if self._handshake is not None:
            return
        if self._quiet_ticks == _MISSED_TICKS and self.identity is not None:
            self._links.on_silence(self.identity.replica)
        if self._quiet_ticks > (_SILENT_TICKS if is_replaceable else _CUT_TICKS):
            silent_s = (self._quiet_ticks - 1) * _SIGN_S
            log.warning("link with %s is cut: nothing came for %.0f s", self.name, silent_s)
            self._transport.abort()
        else:
            self.send(sign)

    @property
    def name(self) -> str:
        return self.identity.name if self.identity is not None else "an unknown node"

    def send(self, frame: bytes | bytearray) -> bool:
        """Queue a frame; False where the other side does not keep up and it was dropped."""
        if self.is_closed or self._is_paused:
            return False
        self._out.append(frame)
        self._links.schedule(self)
        return True

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.is_closed:
            self._write(out[0] if len(out) == 1 else b"".join(out))

    def _write(self, data: bytes | bytearray) -> None:
        """Straight to the socket where nothing waits before it: a transport may keep what it is given until
        the end of the turn, and this turn may wait for the disk first."""
        self.traffic.bytes_sent += len(data)
        if self._descriptor >= 0 and not self._transport.get_write_buffer_size():
            # Full, or broken: the transport knows what to do in either case.
            try:
                sent = os.write(self._descriptor, data)
            except OSError:
                sent = 0
            if sent == len(data):
                return
            data = data[sent:]
        self._transport.write(data)

    def drop(self) -> None:
        """Without a word."""
        self._transport.abort()

    def close(self) -> None:
        self.flush()
        self._descriptor = -1
        self._transport.close()


class Links:
    """All links of a node, by the id of the node at the other end."""

    def __init__(
        self,
        *,
        replica: str,
        identity: Callable[[], Identity],
        secret: bytes,
        random: Random,
        on_frame: Callable[[str, int, int, bytes], None],
        on_open: Callable[[str], None],
        on_close: Callable[[str], None],
        on_silence: Callable[[str], None],
        why_not: Callable[[Identity], str],
        tls: FromFiles[PeerContexts] | None = None,
    ) -> None:
        if not secret and tls is None:
            # An HMAC with an empty key is no proof: whoever reaches the port would be a node [rule 32].
            raise ConfigError("links between nodes need an identity: a secret or mutual TLS")
        self.tls = tls
        self.loop = asyncio.get_running_loop()
        self._replica = replica
        self.identity = identity
        self.secret = secret
        self.random = random
        self.on_frame = on_frame
        self._on_open = on_open
        self._on_close = on_close
        # Nothing came from that node for a moment.
        self.on_silence = on_silence
        # Why a node may not link with this one; nothing where it may.
        self._why_not = why_not
        # The lowest level that nodes of this cluster may have. Set by whoever knows the cluster.
        self.lowest_level: Callable[[], int] = lambda: LEVEL_MIN
        # Called once for each read, after all its frames. Set by whoever answers them.
        self.after_frames: Callable[[], None] = _nothing
        # Ways around missing links. Set by whoever takes what comes that way.
        self.relays: Relays | None = None
        self._links: dict[str, Link] = {}
        self._traffic: dict[str, LinkTraffic] = {}
        self._wanted: dict[str, Address] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._dirty: list[Link] = []
        self._servers: list[asyncio.Server] = []
        self._timer: asyncio.TimerHandle | None = None
        self._is_stopping = False
        # Connections from outside without an identity yet, and how many more were closed at once.
        self._unproved: dict[Link, None] = {}
        self.refused = 0
        self.dropped = 0
        self.port = 0

    # ------------------------------------------------------------------------------------- doors

    async def listen(self, address: Address) -> None:
        # Named only where it is used: the simulated loop knows no TLS.
        extra: dict[str, Any] = {} if self.tls is None else {"ssl": self.tls.made.answering}
        server = await self.loop.create_server(self._answered, address.host, address.port, **extra)
        self._servers = [server]
        self.port = server.sockets[0].getsockname()[1]
        self._tick()

    async def renew(self) -> None:
        """The TLS files changed: whoever comes from now on is shown what they hold. Links stay."""
        if self.tls is None or self._is_stopping:
            return
        old, self._servers = self._servers, []
        # By twins of the sockets that listen: nobody is turned away between an old server and its successor.
        for listening in [one for server in old for one in server.sockets]:
            twin = socket.fromfd(listening.fileno(), listening.family, listening.type)
            context = self.tls.made.answering
            self._servers.append(await self.loop.create_server(self._answered, sock=twin, ssl=context))
        for server in old:
            server.close()

    def _tick(self) -> None:
        self._timer = self.loop.call_later(_SIGN_S, self._tick)
        sign = encode(self.relays.sign()) if self.relays is not None else encode(SignOfLife())
        for replica, link in list(self._links.items()):
            is_replaceable = self.relays is not None and self.relays.via(replica) is not None
            link.tick(sign, is_replaceable=is_replaceable)
        if self.relays is not None:
            self.relays.tick()

    def _answered(self) -> Link:
        return Link(self, Side.ANSWERED)

    async def stop(self) -> None:
        self._is_stopping = True
        if self._timer is not None:
            self._timer.cancel()
        for server in self._servers:
            server.close()
        for task in self._dialing.values():
            task.cancel()
        for link in list(self._links.values()):
            link.close()

    # ------------------------------------------------------------------------------------- peers

    def want(self, peers: dict[str, Address]) -> None:
        """The nodes to be linked with: id -> address. Links to others are closed."""
        self._wanted = {replica: a for replica, a in peers.items() if replica != self._replica}
        for replica, address in self._wanted.items():
            self._dial(replica, address)
        self._traffic = {r: one for r, one in self._traffic.items() if r in peers or r in self._links}
        for replica in [r for r in self._links if r not in self._wanted]:
            self._links[replica].close()

    def _dial(self, replica: str, address: Address) -> None:
        if replica in self._dialing or replica in self._links or self._is_stopping:
            return
        self._dialing[replica] = self.loop.create_task(self._keep_dialing(replica, address))

    async def _keep_dialing(self, replica: str, address: Address) -> None:
        pause_s = _PAUSE_S_MIN
        try:
            if not self._is_first_to_dial(replica):
                await asyncio.sleep(_PATIENCE_S * (1 + self.random.random()))
            while not self._is_stopping and replica in self._wanted and replica not in self._links:
                try:
                    await self.connect(address)
                except OSError as error:
                    if isinstance(error, ssl.SSLError):
                        log.warning("no link to %s: %s", address, error)
                    self._on_close(replica)
                    await asyncio.sleep(pause_s * (0.5 + self.random.random()))
                    pause_s = min(pause_s * 2, _PAUSE_S_MAX)
                else:
                    # Whether the handshake works is seen by the link itself; look again after a while.
                    await asyncio.sleep(_PAUSE_S_MIN)
                    pause_s = min(pause_s * 2, _PAUSE_S_MAX)
                    await asyncio.sleep(pause_s if replica not in self._links else 0)
                address = self._wanted.get(replica, address)
        finally:
            self._dialing.pop(replica, None)

    def _is_first_to_dial(self, replica: str) -> bool:
        return self._replica < replica

    async def connect(self, address: Address) -> Link:
        """Dial an address; the link is of use once the other side has said who it is. OSError where nobody
        answers, soon."""
        extra: dict[str, Any] = {} if self.tls is None else {"ssl": self.tls.made.dialing}
        try:
            async with asyncio.timeout(_CONNECT_S):
                _, link = await self.loop.create_connection(
                    lambda: Link(self, Side.DIALED), address.host, address.port, **extra
                )
        except TimeoutError:
            raise TimeoutError(f"no answer within {_CONNECT_S:.0f} s") from None
        return link

    # ------------------------------------------------------------------------ called by the links

    def accept(self, link: Link) -> bool:
        """The other side is known now: keep the link, unless there is a reason not to."""
        assert link.identity is not None
        replica = link.identity.replica
        if replica == self._replica:
            # A list of addresses that is the same at all nodes has this node's own in it.
            if link.identity.peer_address != self.identity().peer_address:
                log.warning(
                    "no link with node %s at %s: it has the identity of this node. Either both run on copies "
                    "of one data directory, which must never be, or that is another address of this node",
                    link.identity.name,
                    link.identity.peer_address,
                )
            return False
        if reason := self._why_not(link.identity):
            log.warning("no link with node %s: %s", link.identity.name, reason)
            return False
        old = self._links.get(replica)
        if old is not None and not old.is_closed and old.is_twin_of(link):
            dialed_by_first = link if self._is_first_to_dial(replica) == (link.side is Side.DIALED) else old
            if dialed_by_first is old:
                return False
        self._links[replica] = link
        link.traffic = self.traffic(replica)
        link.traffic.opened += 1
        if old is not None and old is not link:
            # It connected again before its old connection was seen to be gone.
            old.close()
        else:
            log.info("linked with %s", link.identity.name)
        self._on_open(replica)
        return True

    def proved(self, link: Link) -> None:
        self._unproved.pop(link, None)

    def make_room_for(self, link: Link) -> None:
        """Strangers must not take the descriptors that the node needs: those without proof are few. The
        oldest gives way, for a node proves itself at once: strangers who say nothing keep no node out."""
        if len(self._unproved) >= UNPROVED_LINKS_MAX:
            self.refused += 1
            oldest = next(iter(self._unproved))
            self._unproved.pop(oldest)
            oldest.drop()
        self._unproved[link] = None

    def lost(self, link: Link) -> None:
        self._unproved.pop(link, None)
        if link.identity is None:
            return
        replica = link.identity.replica
        if self._links.get(replica) is not link:
            return
        del self._links[replica]
        if not self._is_stopping:
            log.info("link with %s is lost", link.identity.name)
            self._on_close(replica)
            if replica in self._wanted:
                self._dial(replica, self._wanted[replica])

    def schedule(self, link: Link) -> None:
        if not self._dirty:
            self.loop.call_soon(self.flush)
        self._dirty.append(link)

    def flush(self) -> None:
        """Write what gathered. Happens at the end of the turn anyway; sooner for what others wait for."""
        dirty, self._dirty = self._dirty, []
        for link in dict.fromkeys(dirty):
            link.flush()

    # -------------------------------------------------------------------------------------- send

    def send(self, replica: str, frame: bytes | bytearray) -> bool:
        """A frame for a node; False where it was dropped."""
        if self.send_directly(replica, frame):
            return True
        if replica not in self._links and self.relays is not None and self.relays.send(replica, frame):
            return True
        self.dropped += 1
        return False

    def send_directly(self, replica: str, frame: bytes | bytearray) -> bool:
        """The same over a link with that node, or not at all."""
        link = self._links.get(replica)
        return link is not None and link.send(frame)

    def wanted(self) -> Iterable[str]:
        """The nodes to be linked with."""
        return self._wanted

    def peers(self) -> list[str]:
        """The nodes with a link right now."""
        return list(self._links)

    def traffic(self, replica: str) -> LinkTraffic:
        """What went between this node and that one so far."""
        return self._traffic.setdefault(replica, LinkTraffic())

    def is_linked(self, replica: str) -> bool:
        return replica in self._links

    def is_heard(self, replica: str) -> bool:
        """Whether something comes from that node, over a link or through another node."""
        return self.is_heard_directly(replica) or (self.relays is not None and self.relays.is_heard(replica))

    def is_reached(self, replica: str) -> bool:
        """Whether there is a way to that node."""
        return replica in self._links or (self.relays is not None and self.relays.is_heard(replica))

    def is_heard_directly(self, replica: str) -> bool:
        """Whether there is a link, and something comes over it."""
        link = self._links.get(replica)
        return link is not None and not link.is_silent


def _nothing() -> None:
    pass
