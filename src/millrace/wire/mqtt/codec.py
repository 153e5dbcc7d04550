"""The MQTT codec as the rest of the package sees it: cut bytes into packets, decode one, encode one.

`split` finds the next packet in a buffer; `decode` takes its first byte and its body. The byte loops of a
busy connection do not come here (see `kernels`): this is the way for every packet that needs a decision.
"""

from millrace.wire.mqtt.decoder import decode
from millrace.wire.mqtt.encoder import encode, encode_publish
from millrace.wire.mqtt.primitives import read_varint, split, varint
from millrace.wire.mqtt.properties import decode_properties, encode_properties

__all__ = [
    "decode",
    "decode_properties",
    "encode",
    "encode_properties",
    "encode_publish",
    "read_varint",
    "split",
    "varint",
]
