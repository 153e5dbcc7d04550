"""The balancer of deploy/haproxy in front of three real nodes: TLS ends there, nodes see devices."""

import asyncio
import re
import shutil
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from e2e.certificates import Authority
from e2e.test_cluster import TIMEOUT_S, name, whole
from millrace.client import Client
from millrace.client.http import Http
from millrace.local_cluster import LocalCluster, NodeProcess, PortBlock
from millrace.types import Version
from millrace.wire.mqtt.codec import encode
from millrace.wire.mqtt.packets import Connect
from waiting import pause

CONFIGURATION = Path(__file__).resolve().parents[2] / "deploy" / "haproxy" / "haproxy.cfg"
DEVICE = "127.0.7.7"

pytestmark = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")


def configured(nodes: list[NodeProcess], certificate: Path, mqtts: int, https: int) -> str:
    """The file as it is shipped, with addresses of this test."""
    text = CONFIGURATION.read_text()
    text = text.replace("/etc/haproxy/millrace.pem", str(certificate)).replace("check port 18831", "check")
    text = text.replace("maxconn 20000", "maxconn 500")
    text = text.replace("0.0.0.0:8883", f"127.0.0.1:{mqtts}").replace("0.0.0.0:8443", f"127.0.0.1:{https}")
    for number, node in enumerate(nodes, 1):
        checked = f"127.0.0.1:{node.mqtt_port} port {node.http_port}"
        text = text.replace(f"10.0.0.{number}:1883\n", f"{checked}\n")
        text = text.replace(f"10.0.0.{number}:18831", f"127.0.0.1:{node.http_port}")
    assert not re.search(r"10\.0\.0\.|/etc/", text)
    return text


@asynccontextmanager
async def balancer(cluster: LocalCluster, directory: Path) -> AsyncIterator[tuple[int, int, Authority]]:
    """Its ports for MQTT and HTTP, and whom its certificate is by."""
    authority = Authority(directory, "authority")
    pair = authority.issue("balancer", server=True)
    certificate = directory / "millrace.pem"
    certificate.write_text(Path(pair.certificate).read_text() + Path(pair.key).read_text())
    ports = PortBlock()
    mqtts, https = ports.take(), ports.take()
    file = directory / "haproxy.cfg"
    file.write_text(configured(cluster.nodes, certificate, mqtts, https))
    process = await asyncio.create_subprocess_exec("haproxy", "-db", "-f", str(file))
    try:
        yield mqtts, https, authority
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        ports.close()


async def clients_of(nodes: list[NodeProcess]) -> list[dict[str, Any]]:
    urls = [node.http_url for node in nodes]
    found = await asyncio.to_thread(lambda: Http(urls).get("/v1/clients"))
    rows: list[dict[str, Any]] = found["items"]
    return rows


async def row_of(client_id: str, nodes: list[NodeProcess]) -> dict[str, Any]:
    async with asyncio.timeout(TIMEOUT_S):
        while True:
            for row in await clients_of(nodes):
                if row["client_id"] == client_id:
                    return row
            await pause()


def test_devices_reach_nodes_through_a_balancer_with_tls(tmp_path: Path) -> None:
    async def body() -> None:
        options = ("--set", "listeners.proxy_protocol=true")
        async with (
            asyncio.timeout(240),
            LocalCluster(3, tmp_path / "data", options=options) as cluster,
            balancer(cluster, tmp_path) as (mqtts, https, authority),
        ):
            await whole(cluster)
            await sees_the_address_of_a_device(cluster, mqtts, authority)
            await goes_on_where_a_node_is_killed(cluster, mqtts, authority)
            live = [node for node in cluster.nodes if node.is_running]
            url = f"https://127.0.0.1:{https}"
            found = await asyncio.to_thread(lambda: Http(url, ca_file=authority.file).get("/v1/cluster"))
            assert len(found["members"]) == 3 and len(live) == 2

    asyncio.run(body())


async def sees_the_address_of_a_device(cluster: LocalCluster, port: int, authority: Authority) -> None:
    """The node's list of clients names the device, not the balancer."""
    trusted = ssl.create_default_context(cafile=authority.file)
    async with asyncio.timeout(TIMEOUT_S):
        while True:  # The balancer asks the nodes first whether they serve.
            reader, writer = await asyncio.open_connection(
                "127.0.0.1", port, ssl=trusted, local_addr=(DEVICE, 0)
            )
            writer.write(encode(Connect(version=Version.MQTT_5, client_id="device"), Version.MQTT_5))
            if await reader.read(4):
                break
            writer.close()
            await pause()
    assert (await row_of("device", cluster.nodes))["address"].split(":")[0] == DEVICE
    writer.close()


async def goes_on_where_a_node_is_killed(cluster: LocalCluster, port: int, authority: Authority) -> None:
    """A durable session follows its client through the balancer to another node; nothing is lost."""
    url = f"mqtts://127.0.0.1:{port}"
    durable = {"client_id": name("durable"), "session_expiry_s": 600, "ca_file": authority.file}
    async with (
        Client(url, client_id=name("publisher"), ca_file=authority.file) as publisher,
        Client(url, **durable) as subscriber,
        subscriber.subscribe("balanced/#", qos=1) as messages,
    ):
        await publisher.publish("balanced/a", b"before", qos=1)
        assert (await messages.get(TIMEOUT_S)).payload == b"before"
        serving = (await row_of(durable["client_id"], cluster.nodes))["node"]
        await next(node for node in cluster.nodes if node.name == serving).kill()
        await asyncio.wait_for(publisher.publish("balanced/a", b"after", qos=1), TIMEOUT_S)
        # QoS 1: the first may come again, as its node fell before it told the others of the acknowledgement.
        while (await messages.get(TIMEOUT_S)).payload != b"after":
            pass
