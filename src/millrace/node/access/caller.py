"""Who asks for something, by whatever door, and what the access rules say about it.

A request that its caller may not make raises `Denied`. Its status is that of HTTP; other doors say its text.
"""

from dataclasses import dataclass
from typing import Any, Protocol

from millrace.broker.access import Principal, Role
from millrace.broker.machine import Broker
from millrace.errors import MillraceError
from millrace.node.access.authentication import Authentication
from millrace.node.access.identity import Identity, Proof
from millrace.node.doors.mqtt_door import MqttDoor


class Denied(MillraceError):
    """The caller may not do this: never, not with this login (401), or not so often (429)."""

    def __init__(self, status: int, detail: str) -> None:
        super().__init__(detail)
        self.status = status


class ServingNode(Protocol):
    """What is asked of the node to know what somebody may do."""

    broker: Broker
    door: MqttDoor
    authentication: Authentication


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Who makes a request, and what the access rules say about it."""

    identity: Identity
    peer: Any
    client_id: str
    """By which rules of access may know it."""
    principal: Principal
    roles: frozenset[Role]

    @staticmethod
    def of(node: ServingNode, identity: Identity, peer: Any, client_id: str) -> "Caller":
        """What the one may do who proved to be this, or anybody without a proof."""
        return Caller(
            identity=identity,
            peer=peer,
            client_id=client_id,
            principal=identity.principal(node.broker.rules, identity.username, client_id),
            roles=node.authentication.roles(identity, peer),
        )

    @property
    def username(self) -> str | None:
        return self.identity.username

    @property
    def proof(self) -> Proof:
        return self.identity.proof

    def must_publish(self, topic: str) -> None:
        if not self.principal.may_publish(topic):
            raise Denied(403, f"you may not publish to {topic!r}")

    def must_be_slow(self, node: ServingNode, count: int, size_bytes: int) -> None:
        """Denied where this address, this user or everybody published too much in this second."""
        if not node.door.quotas.takes_request(self.peer, self.username, count, size_bytes):
            raise Denied(429, "too many messages in a second; try again")

    def must_subscribe(self, *filters: str) -> None:
        for filter in filters:
            if not self.principal.may_subscribe(filter):
                raise Denied(403, f"you may not subscribe to {filter!r}")

    def is_a(self, role: Role) -> bool:
        return any(own.includes(role) for own in self.roles)

    def now(self, node: ServingNode) -> "Caller":
        """The same caller with the rights of this moment: for requests that waited [rule 31]."""
        if not node.authentication.is_current(self.identity, self.peer):
            raise Denied(401, "the login is not valid any more")
        return Caller.of(node, self.identity, self.peer, self.client_id)

    def key(self, request_id: str) -> str:
        """The name of a request that may be repeated: those of another user are other requests."""
        name = self.username or ""
        return f"{len(name)}:{name}{request_id}" if request_id and name else request_id

    def is_still(self, node: ServingNode, role: Role) -> bool:
        """Whether the same login would succeed now and have this role: for answers that go on."""
        authentication = node.authentication
        return authentication.is_current(self.identity, self.peer) and any(
            own.includes(role) for own in authentication.roles(self.identity, self.peer)
        )

    @property
    def role_names(self) -> tuple[str, ...]:
        return tuple(role.value for role in Role if role in self.roles)

    @property
    def is_admin(self) -> bool:
        return self.is_a(Role.ADMIN)

    def must_be(self, role: Role) -> None:
        if not self.is_a(role):
            who = self.username or "NAME"
            raise Denied(
                403,
                f"this is for users with the role {role.value}"
                f" (an administrator gives it with: millrace user role {who} {role.value})",
            )

    def may_see(self, *filters: str) -> bool:
        """Whether something that concerns these topics may be shown."""
        return self.is_a(Role.OBSERVER) or all(self.principal.may_subscribe(filter) for filter in filters)

    def must_see(self, *filters: str) -> None:
        if not self.may_see(*filters):
            self.must_be(Role.OBSERVER)
