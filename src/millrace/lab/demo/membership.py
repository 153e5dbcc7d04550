"""`membership`: a node joins, is published at, and leaves; the cluster goes on."""

import asyncio

from millrace.client import Client
from millrace.client.http import Http
from millrace.lab.demo.stage import Listener, cluster_of, members_up, publish, ready
from millrace.lab.demo.story import Story


async def run(story: Story) -> None:
    story.title("A node joins and leaves")
    async with cluster_of(story, 3) as cluster:
        first = cluster.nodes[0]
        async with Client(first.url, client_id="watch", session_expiry_s=600) as watch:
            listener = await Listener(story, "sub@n1", watch, "m/#").start()
            fourth = cluster.add()
            story.say(fourth.name, "asks n1 to be taken in")
            await fourth.start()
            await ready(story, cluster, 4)
            joined = await members_up(first)
            story.say("n1", f"members: {', '.join(joined)}")
            async with Client(fourth.url, client_id="pub") as publisher:
                await publish(story, "pub@n4", publisher, "m/1", ["from the newcomer"])
            await listener.has(1)
            story.say(fourth.name, "leaves by command")
            await asyncio.to_thread(Http(first.http_url).call, "DELETE", f"/v1/cluster/nodes/{fourth.name}")
            await fourth.stop()
            left = [name for name in await members_up(first) if name != fourth.name]
            async with Client(cluster.nodes[1].url, client_id="pub") as publisher:
                await publish(story, "pub@n2", publisher, "m/2", ["after it left"])
            await listener.has(2)
            remaining = await members_up(first)
            await listener.stop()
    story.proved(
        {
            "the newcomer was a member like the others": "n4" in joined,
            "what was published at it arrived": "from the newcomer" in listener.received,
            "it is no member after it left": "n4" not in remaining,
            "the others go on without it": len(left) == 3 and "after it left" in listener.received,
        }
    )
