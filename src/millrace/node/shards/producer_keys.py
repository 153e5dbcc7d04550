"""Keys of idempotent publishing as clients give them: a producer's name and a sequence [rule 3].

By HTTP in the headers `Millrace-Producer` and `Millrace-Sequence`, by MQTT 5 in the user properties of the
same names in small letters. A message that repeats a key is acknowledged and not stored again.
"""

from millrace.broker.messages.inbound import Key
from millrace.broker.shards.producers import PRODUCER, SEQUENCE
from millrace.errors import ProtocolError
from millrace.limits import PRODUCER_CHARACTERS_MAX
from millrace.reasons import Reason
from millrace.types import Properties

SEQUENCE_TOP = 2**63 - 1


def client_key(username: str | None, producer: str, sequence: int) -> Key:
    """Apart from the keys that the broker itself gives, and from those of other users [rule 31]. No user name
    has a zero byte in it."""
    user = b"" if username is None else username.encode() + b"\0"
    return b"key/" + user + producer.encode(), sequence


def key_of(properties: Properties, username: str | None) -> Key | None:
    """The key that a PUBLISH of this user carries; ProtocolError where it is not one."""
    if not properties.user:
        return None
    found = {name: value for name, value in properties.user if name in (PRODUCER, SEQUENCE)}
    if not found:
        return None
    producer, text = found.get(PRODUCER, ""), found.get(SEQUENCE, "")
    is_number = text.isascii() and text.isdigit() and len(text) < 20
    if not 0 < len(producer) <= PRODUCER_CHARACTERS_MAX or not is_number or int(text) > SEQUENCE_TOP:
        raise ProtocolError(
            f"{PRODUCER} of 1 to {PRODUCER_CHARACTERS_MAX} characters needs {SEQUENCE}, 0 to 2^63-1",
            Reason.IMPLEMENTATION_SPECIFIC,
        )
    return client_key(username, producer, int(text))
