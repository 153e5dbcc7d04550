"""`routed`: no leader and no log: publish anywhere, retained from another node, a session that moves."""

import asyncio

from millrace.client import Client
from millrace.client.http import Http
from millrace.lab.demo.by_hand import HandClient
from millrace.lab.demo.stage import TIMEOUT_S, Listener, cluster_of, publish
from millrace.lab.demo.story import Story
from millrace.local_cluster import LocalCluster, NodeProcess

_STREAM = {"name": "live", "filters": ["live/#"], "replication": "routed"}


async def run(story: Story) -> None:
    story.title("A stream that is stored nowhere: nodes send each other what their clients want")
    claims: dict[str, bool] = {}
    async with cluster_of(story, 3) as cluster:
        first = cluster.nodes[0]
        await asyncio.to_thread(Http(first.http_url).call, "POST", "/v1/streams", _STREAM)
        story.say(first.name, "made the stream live for live/#: routed")
        await _everywhere(cluster)
        claims |= await _publish_anywhere(story, cluster)
        claims |= await _retained(story, cluster)
        claims |= await _moved(story, cluster)
    story.proved(claims)


async def _everywhere(cluster: LocalCluster) -> None:
    """Wait until every node knows of the stream."""
    async with asyncio.timeout(TIMEOUT_S):
        for node in cluster.nodes:
            while True:
                streams = await asyncio.to_thread(Http(node.http_url).call, "GET", "/v1/streams")
                if any(stream["name"] == "live" for stream in streams["streams"]):
                    break
                await asyncio.sleep(0.02)


async def reached(publisher: Client, listener: Listener, topic: str) -> None:
    """Wait until the publisher's node knows what the listener wants: interest travels, nothing is stored."""
    async with asyncio.timeout(TIMEOUT_S):
        while not listener.received:
            await publisher.publish(topic, b"is anybody there?", qos=0)
            await asyncio.sleep(0.05)
    listener.received.clear()


async def _publish_anywhere(story: Story, cluster: LocalCluster) -> dict[str, bool]:
    story.title("Publish at any node, receive at any node")
    nodes = cluster.nodes
    async with (
        Client(nodes[0].url, client_id="one") as one,
        Client(nodes[1].url, client_id="two") as two,
        Client(nodes[2].url, client_id="three") as three,
    ):
        listener = await Listener(story, "sub@n3", three, "live/+").start()
        for publisher in (one, two):
            await reached(publisher, listener, "live/hello")
        await publish(story, "pub@n1", one, "live/a", ["a1", "a2"])
        await publish(story, "pub@n2", two, "live/b", ["b1", "b2"])
        await publish(story, "pub@n3", three, "live/c", ["c1"])
        wanted = ["a1", "a2", "b1", "b2", "c1"]
        async with asyncio.timeout(TIMEOUT_S):
            while not set(wanted) <= set(listener.received):
                await asyncio.sleep(0.02)
        got = [text for text in listener.received if "?" not in text]
        await listener.stop()
    return {"what was published at any node reached the subscriber at n3 once": sorted(got) == wanted}


async def _retained(story: Story, cluster: LocalCluster) -> dict[str, bool]:
    story.title("The newest retained message, whichever node took it")
    nodes = cluster.nodes
    async with (
        Client(nodes[0].url, client_id="one") as one,
        Client(nodes[1].url, client_id="two") as two,
    ):
        await one.publish("live/state", b"off", qos=1, retain=True)
        story.say("pub@n1", "retains live/state = off")
        await _shown(nodes[1], b"off")
        await two.publish("live/state", b"on", qos=1, retain=True)
        story.say("pub@n2", "retains live/state = on")
    found = [await _shown(node, b"on") for node in nodes]
    story.say("fresh", "subscribers at n1, n2 and n3 get: " + ", ".join(found), "green")
    return {"a fresh subscriber at any node gets the newest": found == ["on"] * 3}


async def _shown(node: NodeProcess, value: bytes) -> str:
    """What a fresh subscriber at this node gets, once it is this; a write travels for a moment."""
    text = ""
    async with asyncio.timeout(TIMEOUT_S):
        while text != value.decode():
            async with Client(node.url) as client, client.subscribe("live/state", qos=1) as messages:
                text = (await anext(aiter(messages))).payload.decode()
    return text


async def _moved(story: Story, cluster: LocalCluster) -> dict[str, bool]:
    story.title("A session moves with what it has not finished")
    first, second, third = cluster.nodes
    old = HandClient(first.mqtt_port, "roamer")
    await old.connect()
    await old.subscribe("live/roam", 2)
    story.say("roamer@n1", "subscribed to live/roam and acknowledges nothing")
    async with Client(second.url, client_id="two") as publisher:
        got: list[str] = []
        async with asyncio.timeout(TIMEOUT_S):
            task = asyncio.create_task(old.publish())
            while not task.done():
                await publisher.publish("live/roam", b"hello", qos=1)
                await asyncio.sleep(0.05)
        old.acknowledge(await task)
        await publish(story, "pub@n2", publisher, "live/roam", ["m1", "m2", "m3"])
        seen = [await old.publish()]
        while seen[-1].message.payload != b"m3":
            seen.append(await old.publish())
        under_way = {packet.message.payload.decode(): packet.packet_id for packet in seen}
        story.say("roamer@n1", f"got m1, m2, m3 under ids {[under_way[m] for m in ('m1', 'm2', 'm3')]}")
        new = HandClient(third.mqtt_port, "roamer")
        is_known = await new.connect()
        story.say("roamer@n3", "connects at another node; its session is there")
        farewell = await old.ended()
        same_ids = True
        while "m3" not in got:
            packet = await new.publish()
            text = packet.message.payload.decode()
            if text.startswith("m"):
                got.append(text)
                same_ids = same_ids and packet.dup and packet.packet_id == under_way[text]
                story.say("roamer@n3", f"got  {text} again under id {packet.packet_id}", "green")
            new.acknowledge(packet)
        new.drop()
    return {
        "the session was there at the other node, with its subscription": is_known,
        "the old connection was closed, and told why": farewell is not None and farewell.reason == 0x8E,
        "its unfinished messages came along, in order, under the ids it knew": same_ids
        and got == ["m1", "m2", "m3"],
    }
