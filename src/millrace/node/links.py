"""Links to the other nodes: one connection per pair, made again when it breaks.

Of two nodes the one with the smaller id dials; a newcomer that nobody knows yet dials whoever it was told.
What is sent to a node without a link is dropped and counted, and so is what exceeds the bound of a link's
queue: protocols above expect losses and repair them. Frames of one turn of the loop leave in one write.
"""

import asyncio
import logging
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from millrace.errors import RemoteError
from millrace.node.config import Address
from millrace.wire.peer import NONCE_BYTES, Frames, Handshake, Side, frame

log = logging.getLogger("millrace.links")

KIND_IDENTITY = 0
_QUEUE_BYTES_MAX = 64 << 20
_HANDSHAKE_S = 5.0
_PAUSE_S_MIN = 0.05
_PAUSE_S_MAX = 1.0


class Identity(msgspec.Struct, array_like=True):
    """Who is at the other end, said by itself once the secret is proved."""

    replica: str
    name: str
    cluster: str
    peer_address: str


class Link(asyncio.Protocol):
    """One connection to another node."""

    def __init__(self, links: "Links", side: Side) -> None:
        self._links = links
        self._handshake: Handshake | None = Handshake(side, links.secret, links.random.randbytes(NONCE_BYTES))
        self._frames = Frames()
        self._out: list[bytes] = []
        self._transport: Any = None
        self._is_paused = False
        self.side = side
        self.identity: Identity | None = None
        self.is_closed = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._transport.set_write_buffer_limits(high=_QUEUE_BYTES_MAX)
        assert self._handshake is not None
        self._transport.write(self._handshake.hello)
        self._links.loop.call_later(_HANDSHAKE_S, self._check_identity)

    def _check_identity(self) -> None:
        if self.identity is None and not self.is_closed:
            log.warning("a link was closed: no proof within %.0f s", _HANDSHAKE_S)
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        try:
            if self._handshake is not None:
                answer, data = self._handshake.receive(data)
                if answer:
                    self._transport.write(answer)
                if not self._handshake.is_proved:
                    return
                self._handshake = None
                self.send(KIND_IDENTITY, 0, msgspec.msgpack.encode(self._links.identity()))
            for kind, group, body in self._frames.receive(data):
                if self.identity is None:
                    if kind != KIND_IDENTITY:
                        raise ProtocolErrorBeforeIdentity
                    self.identity = msgspec.msgpack.decode(body, type=Identity)
                    if not self._links.accept(self):
                        self.close()
                        return
                else:
                    self._links.on_frame(self.identity.replica, kind, group, body)
        except (RemoteError, msgspec.DecodeError) as error:
            log.warning("a link to %s was closed: %s", self.name, error)
            self._transport.abort()
        except ProtocolErrorBeforeIdentity:
            log.warning("a link was closed: the other side did not say who it is")
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        self.is_closed = True
        self._links.lost(self)

    def eof_received(self) -> bool:
        return False

    def pause_writing(self) -> None:
        self._is_paused = True

    def resume_writing(self) -> None:
        self._is_paused = False

    @property
    def name(self) -> str:
        return self.identity.name if self.identity is not None else "an unknown node"

    def send(self, kind: int, group: int, body: bytes) -> bool:
        """Queue a frame; False where the other side does not keep up and it was dropped."""
        if self.is_closed or self._is_paused:
            return False
        self._out.append(frame(kind, group, body))
        self._links.schedule(self)
        return True

    def flush(self) -> None:
        out, self._out = self._out, []
        if out and not self.is_closed:
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def close(self) -> None:
        self.flush()
        self._transport.close()


class ProtocolErrorBeforeIdentity(Exception):
    """A frame before the identity."""


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
        may_accept: Callable[[Identity], bool],
    ) -> None:
        self.loop = asyncio.get_running_loop()
        self._replica = replica
        self.identity = identity
        self.secret = secret
        self.random = random
        self.on_frame = on_frame
        self._on_open = on_open
        self._on_close = on_close
        self._may_accept = may_accept
        self._links: dict[str, Link] = {}
        self._wanted: dict[str, Address] = {}
        self._dialing: dict[str, asyncio.Task[None]] = {}
        self._dirty: list[Link] = []
        self._server: asyncio.Server | None = None
        self._is_stopping = False
        self.dropped = 0
        self.port = 0

    # ------------------------------------------------------------------------------------- doors

    async def listen(self, address: Address) -> None:
        self._server = await self.loop.create_server(self._answered, address.host, address.port)
        self.port = self._server.sockets[0].getsockname()[1]

    def _answered(self) -> Link:
        return Link(self, Side.ANSWERED)

    async def stop(self) -> None:
        self._is_stopping = True
        if self._server is not None:
            self._server.close()
        for task in self._dialing.values():
            task.cancel()
        for link in list(self._links.values()):
            link.close()

    # ------------------------------------------------------------------------------------- peers

    def want(self, peers: dict[str, Address]) -> None:
        """The nodes to be linked with: id -> address. Links to others are closed."""
        self._wanted = {replica: a for replica, a in peers.items() if replica != self._replica}
        for replica, address in self._wanted.items():
            if self._replica < replica:
                self._dial(replica, address)
        for replica in [r for r in self._links if r not in self._wanted]:
            self._links[replica].close()

    def _dial(self, replica: str, address: Address) -> None:
        if replica in self._dialing or replica in self._links or self._is_stopping:
            return
        self._dialing[replica] = self.loop.create_task(self._keep_dialing(replica, address))

    async def _keep_dialing(self, replica: str, address: Address) -> None:
        pause_s = _PAUSE_S_MIN
        try:
            while not self._is_stopping and replica in self._wanted and replica not in self._links:
                try:
                    await self.connect(address)
                except OSError:
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

    async def connect(self, address: Address) -> Link:
        """Dial an address; the link is of use once the other side has said who it is."""
        _, link = await self.loop.create_connection(
            lambda: Link(self, Side.DIALED), address.host, address.port
        )
        return link

    # ------------------------------------------------------------------------ called by the links

    def accept(self, link: Link) -> bool:
        """The other side is known now: keep the link, unless there is a reason not to."""
        assert link.identity is not None
        replica = link.identity.replica
        if replica == self._replica or not self._may_accept(link.identity):
            log.warning("node %s may not link with this one", link.identity.name)
            return False
        old = self._links.get(replica)
        self._links[replica] = link
        if old is not None and old is not link:
            # It connected again before its old connection was seen to be gone.
            old.close()
        else:
            log.info("linked with %s", link.identity.name)
        self._on_open(replica)
        return True

    def lost(self, link: Link) -> None:
        if link.identity is None:
            return
        replica = link.identity.replica
        if self._links.get(replica) is not link:
            return
        del self._links[replica]
        if not self._is_stopping:
            log.info("link with %s is lost", link.identity.name)
            self._on_close(replica)
            if replica in self._wanted and self._replica < replica:
                self._dial(replica, self._wanted[replica])

    def schedule(self, link: Link) -> None:
        if not self._dirty:
            self.loop.call_soon(self._flush)
        self._dirty.append(link)

    def _flush(self) -> None:
        dirty, self._dirty = self._dirty, []
        for link in dict.fromkeys(dirty):
            link.flush()

    # -------------------------------------------------------------------------------------- send

    def send(self, replica: str, kind: int, group: int, body: bytes) -> bool:
        """A frame for a node; False where it was dropped."""
        link = self._links.get(replica)
        if link is None or not link.send(kind, group, body):
            self.dropped += 1
            return False
        return True

    def peers(self) -> list[str]:
        """The nodes with a link right now."""
        return list(self._links)

    def is_linked(self, replica: str) -> bool:
        return replica in self._links
