"""One client, one connection, at whichever node [rule 7].

A node that lets a client in with a clean session tells all others, and waits for none of them: they end the
connection they may have of it. Such notices come late and cross, so a connection has a stamp: the wall clock,
but always above every stamp heard of. Of two connections the one with the higher stamp stays. Clocks decide
only between two that began before their nodes had heard of each other's.
"""

from collections.abc import Callable, Iterable

from millrace.broker.machine import Broker
from millrace.broker.sessions.session import Session
from millrace.node.peers.messages import ClientConnected
from millrace.node.replicas.replicas import Replicas
from millrace.reasons import Reason


class Presence:
    def __init__(
        self,
        broker: Broker,
        replicas: Replicas,
        members: Callable[[], Iterable[str]],
        wall_us: Callable[[], int],
    ) -> None:
        self._broker = broker
        self._replicas = replicas
        self._members = members
        self.wall_us = wall_us
        self._newest_us = 0

    def opened(self, session: Session) -> None:
        self._newest_us = session.connected_us = max(self.wall_us(), self._newest_us + 1)
        if session.is_recorded:
            return  # the session group tells
        for replica in self._members():
            if replica != self._replicas.replica:
                self._tell(replica, session)

    def _tell(self, replica: str, session: Session) -> None:
        notice = ClientConnected(session.client_id, session.connected_us, session.username)
        self._replicas.messenger.send(replica, notice)

    def on_connected(self, replica: str, _: int, notice: ClientConnected) -> None:
        """The client has a clean session at another node."""
        at_us = notice.at_us
        self._newest_us = max(self._newest_us, at_us)
        session = self._broker.sessions.get(notice.client)
        if session is None or session.connection is None:
            return
        if session.username not in (None, notice.username):
            # Of another user, who chose the same id [rule 31].
            return
        if (at_us, replica) > (session.connected_us, self._replicas.replica):
            session.connection.fail(Reason.SESSION_TAKEN_OVER, "the client connected at another node")
        else:
            # It may have been told before it let the client in.
            self._tell(replica, session)
