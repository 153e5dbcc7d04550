"""TLS of a node: contexts made from files that the configuration names, and made again when the files change.

A context is replaced as a whole, never changed in place: a file that cannot be used leaves everything as it
was, and an authority that is not in its file any more is not trusted any more. New connections get the new
context; those that are open keep theirs until they end.

Files are looked at by their state in the directory (`os.stat`) and read in a worker thread.
"""

import asyncio
import logging
import os
import ssl
from collections.abc import Callable
from typing import Any, Generic, Literal, TypeVar

from millrace.errors import ConfigError
from millrace.node.config import Cluster, Tls

log = logging.getLogger("millrace.tls")

Made = TypeVar("Made")
ClientName = Literal["cn", "san-dns", "san-email", "san-uri"]
_KINDS = {"san-dns": "DNS", "san-email": "email", "san-uri": "URI"}


class FromFiles(Generic[Made]):
    """What is made from some files, and made again once one of them is another file or was written to."""

    def __init__(self, what: str, files: list[str], make: Callable[[], Made]) -> None:
        self.what = what
        self._files = [file for file in files if file]
        self._make = make
        # Before they are read: a change in between is seen by the next look.
        self._seen = self._look()
        self.made = make()

    def refresh(self, *, is_asked: bool) -> bool:
        """Whether it was made anew: because the files changed, or because somebody asked for it. ConfigError
        where they cannot be used, once for each change. Reads files: run it in a worker thread."""
        seen = self._look()
        if seen == self._seen and not is_asked:
            return False
        self._seen = seen
        self.made = self._make()
        return True

    def _look(self) -> list[tuple[int, int, int] | None]:
        return [_state_of(file) for file in self._files]


def _state_of(file: str) -> tuple[int, int, int] | None:
    try:
        found = os.stat(file)
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns


class PeerContexts:
    """Mutual TLS between nodes: what this one shows, and whom it believes."""

    def __init__(self, settings: Cluster) -> None:
        self.answering = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.dialing = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self.dialing.check_hostname = False
        try:
            for context in (self.answering, self.dialing):
                context.minimum_version = ssl.TLSVersion.TLSv1_2
                context.verify_mode = ssl.CERT_REQUIRED
                context.load_cert_chain(settings.tls_cert, settings.tls_key)
                context.load_verify_locations(settings.tls_ca)
        except (OSError, ssl.SSLError) as error:
            raise ConfigError(f"the TLS files of cluster.tls_* cannot be used: {error}") from error


def _door_context(settings: Tls) -> ssl.SSLContext:
    """The server's side of TLS."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    # A client could make us compute new keys again and again at no cost of its own.
    context.options |= ssl.OP_NO_RENEGOTIATION
    try:
        context.load_cert_chain(settings.certificate, settings.key)
        if settings.client_ca:
            context.load_verify_locations(settings.client_ca)
            required = settings.require_client_certificate
            context.verify_mode = ssl.CERT_REQUIRED if required else ssl.CERT_OPTIONAL
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(f"the TLS files cannot be used: {error}") from error
    return context


def for_doors(settings: Tls) -> FromFiles[ssl.SSLContext] | None:
    """The context of all doors for clients; None where no certificate is configured."""
    if not settings.certificate:
        return None
    files = [settings.certificate, settings.key, settings.client_ca]
    return FromFiles("the certificate of tls.certificate", files, lambda: _door_context(settings))


def for_peers(settings: Cluster) -> FromFiles[PeerContexts] | None:
    """The same for links between nodes."""
    if not settings.tls_cert:
        return None
    files = [settings.tls_cert, settings.tls_key, settings.tls_ca]
    return FromFiles("the certificate of cluster.tls_cert", files, lambda: PeerContexts(settings))


class Renewal:
    """Looks at all files of the node now and then. Faults are told, and change nothing."""

    def __init__(self, told: Callable[[str], None]) -> None:
        self._told = told
        self._watched: list[tuple[FromFiles[Any], Callable[[], None]]] = []
        self._looking: asyncio.Task[None] | None = None
        self._is_asked = False

    def watch(self, files: FromFiles[Any] | None, renewed: Callable[[], None] = lambda: None) -> None:
        """`renewed` is called on the event loop once it was made anew."""
        if files is not None:
            self._watched.append((files, renewed))

    @property
    def has_files(self) -> bool:
        return bool(self._watched)

    def look(self, *, is_asked: bool = False) -> None:
        """Begin a look; if one is under way, what is asked for follows it."""
        self._is_asked = self._is_asked or is_asked
        if self._watched and (self._looking is None or self._looking.done()):
            self._looking = asyncio.get_running_loop().create_task(self._look())

    async def _look(self) -> None:
        is_asked, self._is_asked = self._is_asked, False
        for files, renewed in self._watched:
            try:
                is_new = await asyncio.to_thread(files.refresh, is_asked=is_asked)
            except ConfigError as error:
                log.error("not reloaded, %s stays as it was: %s", files.what, error)
                continue
            if is_new:
                renewed()
                self._told(f"reloaded: {files.what}")

    def close(self) -> None:
        if self._looking is not None:
            self._looking.cancel()


def names_in(certificate: dict[str, Any] | None, field: ClientName) -> list[str]:
    """The names that a client certificate, which TLS has verified, has in this field."""
    if not certificate:
        return []
    if field == "cn":
        parts = [pair for part in certificate.get("subject", ()) for pair in part]
        return [str(value) for key, value in parts if key == "commonName" and value]
    return [str(value) for kind, value in certificate.get("subjectAltName", ()) if kind == _KINDS[field]]


def end_us(certificate: dict[str, Any] | None) -> int:
    """When the certificate ends, in microseconds since 1970; 0 where it does not say."""
    until = (certificate or {}).get("notAfter")
    return int(ssl.cert_time_to_seconds(until)) * 1_000_000 if until else 0
