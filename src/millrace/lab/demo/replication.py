"""`replication`: publish at one node, receive at others: one subscriber, two, and one that leaves."""

from millrace.client import Client
from millrace.lab.demo.stage import Listener, cluster_of, publish
from millrace.lab.demo.story import Story


async def run(story: Story) -> None:
    story.title("A publish at one node reaches subscribers at every other")
    async with cluster_of(story, 3) as cluster:
        first, second, third = cluster.nodes
        async with (
            Client(first.url, client_id="pub") as publisher,
            Client(second.url, client_id="one") as one,
            Client(third.url, client_id="two") as two,
        ):
            story.title("One subscriber, at another node")
            left = await Listener(story, "sub@n2", one, "news/#").start()
            await publish(story, "pub@n1", publisher, "news/a", ["a1", "a2"])
            await left.has(2)
            story.title("Two subscribers, at two other nodes")
            right = await Listener(story, "sub@n3", two, "news/#").start()
            await publish(story, "pub@n1", publisher, "news/b", ["b1", "b2"])
            await left.has(4)
            await right.has(2)
            story.title("One unsubscribes")
            await left.stop()
            story.say("sub@n2", "unsubscribed")
            await publish(story, "pub@n1", publisher, "news/c", ["c1"])
            await right.has(3)
            await right.stop()
    story.proved(
        {
            "the subscriber at n2 got what was sent while it was there": left.received
            == ["a1", "a2", "b1", "b2"],
            "the subscriber at n3 got what was sent since it came": right.received == ["b1", "b2", "c1"],
        }
    )
