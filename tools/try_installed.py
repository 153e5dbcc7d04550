"""Use the installed package as a stranger would: a broker, a client, one message. Not in the repository."""

import asyncio
import importlib.util
import pathlib
import sys

import millrace
from millrace.client import Client

assert pathlib.Path(millrace.__file__).is_relative_to(sys.prefix), millrace.__file__


async def one_message() -> None:
    async with (
        millrace.Broker() as broker,
        Client(broker.url) as client,
        client.subscribe("greetings/#") as messages,
    ):
        await client.publish("greetings/wheel", b"hello", qos=1)
        message = await anext(aiter(messages))
        assert (message.topic, bytes(message.payload)) == ("greetings/wheel", b"hello"), message


asyncio.run(asyncio.wait_for(one_message(), 30))

# Without the extra `spark` the package is found, and all it lacks is what that extra brings.
assert importlib.util.find_spec("pyspark_millrace") is not None
try:
    import pyspark_millrace  # noqa: F401
except ModuleNotFoundError as error:
    assert error.name in ("pyspark", "pyarrow", "numpy"), error
    print(f"wheel: pyspark_millrace asks for {error.name}, as it should without the extra")
