"""Who left the retained messages of a node, and how many bytes: for `limits.user_retained_bytes_max`.

A retained message does not know its publisher, so this knows only what clients of this node left since it
started. A message counts when it is retained, not when it is taken: what one client has under way may go
beyond the bound, by less than a node takes without its being in a log.
"""

from collections import Counter


class RetainedOwners:
    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._by_topic: dict[str, tuple[str, int]] = {}
        self._held: Counter[str] = Counter()

    def has_room(self, topic: str, username: str, size_bytes: int) -> bool:
        owner, old_bytes = self._by_topic.get(topic, ("", 0))
        return self._held[username] + size_bytes - (old_bytes if owner == username else 0) <= self.bytes_max

    def own(self, topic: str, username: str, size_bytes: int) -> None:
        """What is retained there is this user's."""
        self.release(topic)
        self._by_topic[topic] = username, size_bytes
        self._held[username] += size_bytes

    def release(self, topic: str) -> None:
        """It is gone, or another one is there."""
        owned = self._by_topic.pop(topic, None)
        if owned is not None:
            username, size_bytes = owned
            self._held[username] -= size_bytes
            if not self._held[username]:
                del self._held[username]
