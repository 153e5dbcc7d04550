"""A client at every node that publishes to every shard and tells how long it waited for an answer."""

import asyncio

from millrace.client import Client, ClientError
from millrace.lab.campaign.stage import Stage
from millrace.local_cluster import NodeProcess

_PAUSE_S = 0.05
# Subscribers of the load get it as well, and read numbers.
_PAYLOAD = b"0"
_CONNECT_S = 3.0


class Probe:
    """Knows only its node, and connects again to it. One message at a time for each shard."""

    def __init__(self, node: NodeProcess, topics: list[str]) -> None:
        self.node = node.name
        self._topics = topics
        self._client = Client(
            node.url, client_id=f"probe-{node.name}", connect_timeout_s=_CONNECT_S, reconnect_pause_s_max=0.2
        )
        self._acked_s = [0.0] * len(topics)
        self._longest_s = [0.0] * len(topics)
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Probe":
        await self._client.__aenter__()
        self.mark()
        self._task = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)
        await self._client.__aexit__(None, None, None)

    async def _run(self) -> None:
        await asyncio.gather(*(self._publish(position) for position in range(len(self._topics))))

    async def _publish(self, position: int) -> None:
        loop = asyncio.get_running_loop()
        while True:
            try:
                await self._client.publish(self._topics[position], _PAYLOAD, qos=1)
            except ClientError:
                # Refused, or the connection broke: no acknowledgement.
                await asyncio.sleep(_PAUSE_S)
                continue
            now_s = loop.time()
            self._longest_s[position] = max(self._longest_s[position], now_s - self._acked_s[position])
            self._acked_s[position] = now_s
            await asyncio.sleep(_PAUSE_S)

    def mark(self) -> None:
        """Count from now on."""
        now_s = asyncio.get_running_loop().time()
        self._acked_s = [now_s] * len(self._topics)
        self._longest_s = [0.0] * len(self._topics)

    @property
    def longest_s(self) -> float:
        """The longest time since the mark in which some shard acknowledged nothing to this client."""
        now_s = asyncio.get_running_loop().time()
        waits = (now_s - acked_s for acked_s in self._acked_s)
        return max(max(pair) for pair in zip(self._longest_s, waits, strict=True))


def probes(stage: Stage) -> list[Probe]:
    # The judge reads numbers from topics of publishers only, whose names begin with p and a digit.
    return [Probe(node, stage.topics(f"at-{node.name}")) for node in stage.nodes]
