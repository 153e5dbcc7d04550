"""What it means to change how a stream is replicated, in words, before it happens.

The change itself is the one of [rule 16]: the shards there are take nothing more, new ones are opened
(none for a routed stream), and their numbers are never used again.
"""

from millrace.broker.streams.stream import Replication, Stream, StreamSpec, needs_new_shards


def consequences(stream: Stream, spec: StreamSpec) -> tuple[str, ...]:
    """Sentences for whoever asked for the change; none where it moves no topic."""
    old = stream.spec
    if not needs_new_shards(old, spec):
        return ()
    said: list[str] = []
    if stream.shards:
        numbers = ", ".join(map(str, stream.shards))
        said.append(
            f"shards {numbers} are sealed: what is in them stays readable at its offsets, nothing is added,"
            " and every reader finishes them first"
        )
    if spec.replication is Replication.ROUTED:
        said.append(
            "from then on messages are stored nowhere and have no offset: readers by offset, groups, the HTTP"
            " queue and Spark see none of them; a client that is away gets what its node kept in memory; the"
            " first of them may come before the last that were stored"
        )
    elif spec.replication is Replication.LEADERLESS:
        said.append(
            "from then on every node writes a log of its own, each with a number of its own, and order holds"
            " inside each of them; groups that read by HTTP and the HTTP queue see none of them"
        )
    else:
        fresh = "a new shard begins" if spec.shards == 1 else f"{spec.shards} new shards begin"
        said.append(f"{fresh} at offset 0 under new numbers: a position in an old one says nothing about it")
    if old.replication is Replication.ROUTED and spec.replication is not Replication.ROUTED:
        said.append("what was published while the stream was routed was not stored and cannot be read later")
    said.append("retained messages, subscriptions and sessions stay")
    return tuple(said)
