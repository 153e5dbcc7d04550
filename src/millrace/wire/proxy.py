"""The PROXY protocol, versions 1 and 2: whom a load balancer speaks for.

The header stands before the first byte of the connection. It is trusted, so a listener reads it only where
the operator says that a balancer is in front.
"""

import ipaddress

from millrace.errors import MalformedPacket

_SIGNATURE = b"\r\n\r\n\0\r\nQUIT\n"
# Version 1 is one line; the longest possible one has 107 bytes.
_LINE_BYTES_MAX = 107
_HEADER_BYTES = 16
# Addresses of two hosts and some extensions; more than this is not a header.
_BODY_BYTES_MAX = 2048


def parse(data: bytes) -> tuple[int, tuple[str, int] | None] | None:
    """(bytes used, source address or None where the balancer speaks for itself); None while incomplete."""
    if data[: len(_SIGNATURE)] == _SIGNATURE[: len(data)]:
        return _parse_binary(data)
    if data[:6] == b"PROXY "[: len(data)]:
        return _parse_line(data)
    raise MalformedPacket("the connection does not begin with a PROXY header")


def _parse_line(data: bytes) -> tuple[int, tuple[str, int] | None] | None:
    end = data.find(b"\r\n", 0, _LINE_BYTES_MAX)
    if end < 0:
        if len(data) >= _LINE_BYTES_MAX:
            raise MalformedPacket("a PROXY line that does not end")
        return None
    words = data[:end].split(b" ")
    if words[1:2] == [b"UNKNOWN"]:
        return end + 2, None
    if len(words) != 6 or words[1] not in (b"TCP4", b"TCP6"):
        raise MalformedPacket("a PROXY line that is neither TCP4, TCP6 nor UNKNOWN")
    try:
        host = ipaddress.ip_address(words[2].decode("ascii"))
        ipaddress.ip_address(words[3].decode("ascii"))
        port = int(words[4])
    except ValueError:
        raise MalformedPacket("a PROXY line with a wrong address") from None
    if host.version != (4 if words[1] == b"TCP4" else 6) or not 0 <= port <= 65_535:
        raise MalformedPacket("a PROXY line with a wrong address")
    return end + 2, (str(host), port)


def _parse_binary(data: bytes) -> tuple[int, tuple[str, int] | None] | None:
    if len(data) < _HEADER_BYTES:
        return None
    command, family = data[12], data[13]
    length = data[14] << 8 | data[15]
    if command >> 4 != 2 or command & 15 > 1:
        raise MalformedPacket("a PROXY header of an unknown version or command")
    if length > _BODY_BYTES_MAX:
        raise MalformedPacket("a PROXY header that is too long")
    end = _HEADER_BYTES + length
    if len(data) < end:
        return None
    if command & 15 == 0:
        return end, None
    for code, size in ((0x11, 4), (0x21, 16)):
        if family == code:
            if length < size * 2 + 4:
                raise MalformedPacket("a PROXY header without its addresses")
            host = ipaddress.ip_address(data[16 : 16 + size])
            at = 16 + 2 * size
            return end, (str(host), data[at] << 8 | data[at + 1])
    return end, None
