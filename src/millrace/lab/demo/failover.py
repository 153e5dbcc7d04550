"""`failover`: the leader is killed under load; nothing acknowledged is lost, nothing comes twice."""

import asyncio
import time

from millrace.client import Client
from millrace.lab.demo.stage import TIMEOUT_S, Listener, cluster_of, leader
from millrace.lab.demo.story import Story

_BEFORE, _AFTER = 10, 10


async def run(story: Story) -> None:
    story.title("The leader is killed while messages flow")
    async with cluster_of(story, 3) as cluster:
        urls = [node.url for node in cluster.nodes]
        async with (
            Client(urls, client_id="device", session_expiry_s=600) as device,
            Client(list(reversed(urls)), client_id="screen", session_expiry_s=600) as screen,
        ):
            listener = await Listener(story, "screen", screen, "plant/#").start()
            sent: list[str] = []
            longest_s = 0.0
            for number in range(_BEFORE + _AFTER):
                if number == _BEFORE:
                    victim = await leader(cluster.nodes)
                    story.say(victim.name, "kill -9: it led the cluster", "red")
                    await victim.kill()
                text = f"reading {number}"
                begun_s = time.monotonic()
                await asyncio.wait_for(device.publish("plant/1", text.encode(), qos=2), TIMEOUT_S)
                longest_s = max(longest_s, time.monotonic() - begun_s)
                story.say("device", f"sent {text}")
                sent.append(text)
                await asyncio.sleep(0.05)
            follower = await leader(cluster.nodes)
            story.say(follower.name, "leads now")
            await victim.start()
            story.say(victim.name, "is back with its data")
            await listener.has(len(sent))
            await listener.stop()
    story.say("device", f"the longest wait for an acknowledgement was {longest_s:.2f} s")
    story.proved(
        {
            f"all {len(sent)} acknowledged messages arrived": set(sent) <= set(listener.received),
            "none came twice": len(listener.received) == len(set(listener.received)),
            "in the order they were sent": listener.received == sent,
            "another node took the lead": follower is not victim,
        }
    )
