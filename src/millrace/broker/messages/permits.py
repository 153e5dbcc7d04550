"""Whether a client may still have what was routed to it earlier and is sent now [rule 31].

A route is resolved under the rules of its time, and a message that leaves in the same turn needs no more. One
that waited (for a window, for its client, for the disk, or to be sent again) may leave under other rules: a
segment says for which access class it was cleared, and one that was cleared for another is looked at again,
once for each topic and access class, never for each message.
"""

from millrace.broker.access import Principal
from millrace.broker.messages.message import Segment
from millrace.kernels import skip
from millrace.kernels.publish import topic_of

# Answers that are remembered, all of one access class. Sessions are served one after another, and most of
# what waits for one is of few topics.
_ANSWERS_MAX = 1_024


class Permits:
    def __init__(self) -> None:
        self._principal: Principal | None = None
        self._answers: dict[bytes, bool] = {}

    def allows(self, principal: Principal, topic: bytes) -> bool:
        if principal.unrestricted:
            return True
        if principal is not self._principal or len(self._answers) >= _ANSWERS_MAX:
            self._principal, self._answers = principal, {}
        answer = self._answers.get(topic)
        if answer is None:
            answer = self._answers[topic] = principal.may_receive(topic.decode())
        return answer

    def leading(self, principal: Principal, segment: Segment) -> tuple[int, bool]:
        """How many of the first messages of a segment get the same answer, and that answer."""
        if principal.unrestricted:
            return segment.count, True
        data = segment.run.data
        at = segment.start()
        answer = self.allows(principal, topic_of(data, at))
        count = 1
        while count < segment.count:
            at = skip(data, 1, at)
            if self.allows(principal, topic_of(data, at)) != answer:
                break
            count += 1
        return count, answer
