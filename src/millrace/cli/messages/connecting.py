"""What `pub` and `sub` share: the options that say which broker and how, and errors that say what next."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING, Annotated, Any

import typer

from millrace.cli.shared.contexts import (
    MQTT_DEFAULT,
    PASSWORD_VARIABLE,
    URL_VARIABLE,
    mqtt_urls,
)
from millrace.client.connection.tls import CA_VARIABLE, CERT_VARIABLE, KEY_VARIABLE

if TYPE_CHECKING:
    from millrace.client.blocking import Client


class ProtocolVersion(StrEnum):
    MQTT_5 = "5"
    MQTT_3_1_1 = "3.1.1"


Url = Annotated[
    list[str] | None,
    typer.Option(
        "--url",
        metavar="URL",
        show_default=f"{URL_VARIABLE}, the context, the local cluster or {MQTT_DEFAULT}",
        help="Broker: HOST:PORT, or mqtt://, mqtts://, ws:// or wss:// with USER@HOST:PORT, or the http:// "
        f"address of a node; the password comes from {PASSWORD_VARIABLE}. Several are tried in turn.",
    ),
]
Qos = Annotated[int, typer.Option("-q", "--qos", min=0, max=2, help="Quality of service.")]


@dataclass(frozen=True, slots=True, kw_only=True)
class ConnectionOptions:
    client_id: Annotated[
        str | None, typer.Option("--client-id", metavar="ID", help="Client id. [default: a random one]")
    ] = None
    protocol: Annotated[ProtocolVersion, typer.Option("--protocol", help="Version of MQTT.")] = (
        ProtocolVersion.MQTT_5
    )
    ca_file: Annotated[
        str | None,
        typer.Option(
            "--ca-file",
            metavar="FILE",
            envvar=CA_VARIABLE,
            help="File with the authorities to trust, for TLS.",
        ),
    ] = None
    cert_file: Annotated[
        str | None,
        typer.Option(
            "--cert-file", metavar="FILE", envvar=CERT_VARIABLE, help="Certificate of this client, for TLS."
        ),
    ] = None
    key_file: Annotated[
        str | None,
        typer.Option(
            "--key-file", metavar="FILE", envvar=KEY_VARIABLE, help="Private key of that certificate."
        ),
    ] = None
    insecure: Annotated[bool, typer.Option("--insecure", help="Trust any certificate of the broker.")] = False

    @property
    def is_mqtt_5(self) -> bool:
        return self.protocol is ProtocolVersion.MQTT_5

    @property
    def tls(self) -> dict[str, Any]:
        """The arguments of a client that concern TLS."""
        names = ("ca_file", "cert_file", "key_file", "insecure")
        return {name: getattr(self, name) for name in names}


@contextmanager
def connected(urls: list[str] | None, given: ConnectionOptions, **options: Any) -> "Iterator[Client]":
    """An open client. What the user got wrong becomes a ConfigError, which is exit status 2."""
    from millrace.client.blocking import Client
    from millrace.client.connection.address import parse
    from millrace.client.errors import CannotConnect, ClientError, Refused
    from millrace.errors import ConfigError, LocalError
    from millrace.reasons import Reason
    from millrace.types import Version

    version = Version.MQTT_5 if given.is_mqtt_5 else Version.MQTT_3_1_1
    options |= {"client_id": given.client_id, **given.tls}
    try:
        brokers = mqtt_urls(urls)
        addresses = [parse(url) for url in brokers]
        secret = os.environ.get(PASSWORD_VARIABLE)
        if any(address.username and address.password is None for address in addresses):
            options["password"] = secret
        client = Client(brokers, version=version, **options)
        try:
            client.__enter__()
        except CannotConnect as error:
            raise ClientError(
                f"{error}; start a broker with `millrace start`, or name one with --url"
            ) from error
        except Refused as error:
            if error.reason in (Reason.BAD_USER_OR_PASSWORD, Reason.NOT_AUTHORIZED):
                raise ClientError(
                    f"{error}; name the user in --url mqtt://USER@HOST and set {PASSWORD_VARIABLE}"
                ) from error
            raise
        try:
            yield client
        finally:
            client.close()
    except LocalError as error:
        raise ConfigError(str(error)) from error
