package millrace.spark.blocks;

import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.List;
import millrace.spark.common.Bounds;
import millrace.spark.common.LocalError;
import org.apache.spark.unsafe.types.UTF8String;

/** The MQTT 5 properties of a PUBLISH that have a column (section 2.2.2); null where one is absent. */
public record Properties(
        Integer payloadFormat,
        Long messageExpiryS,
        byte[] responseTopic,
        byte[] correlationData,
        byte[] contentType,
        List<byte[][]> user) {
    private static final int PAYLOAD_FORMAT = 0x01;
    private static final int MESSAGE_EXPIRY = 0x02;
    private static final int CONTENT_TYPE = 0x03;
    private static final int RESPONSE_TOPIC = 0x08;
    private static final int CORRELATION_DATA = 0x09;
    private static final int SUBSCRIPTION_ID = 0x0B;
    private static final int TOPIC_ALIAS = 0x23;
    private static final int USER = 0x26;

    /** Whether there is something beside a content type, which has a column of its own. */
    boolean hasFields() {
        return payloadFormat != null
                || messageExpiryS != null
                || responseTopic != null
                || correlationData != null
                || !user.isEmpty();
    }

    /** The section between these places, its length included; BlockDamaged where it is none. */
    static Properties read(byte[] data, int at, int end) {
        Section section = new Section(data, at, end);
        long length = section.number();
        if (length != section.left()) {
            throw new BlockDamaged("the properties of a message do not fit its packet");
        }
        Integer format = null;
        Long expiry = null;
        byte[] response = null;
        byte[] correlation = null;
        byte[] content = null;
        List<byte[][]> user = new ArrayList<>();
        while (section.left() > 0) {
            int identifier = section.byteAt();
            switch (identifier) {
                case PAYLOAD_FORMAT -> format = section.byteAt();
                case MESSAGE_EXPIRY -> expiry = (long) section.u16() << 16 | section.u16();
                case CONTENT_TYPE -> content = section.text();
                case RESPONSE_TOPIC -> response = section.text();
                case CORRELATION_DATA -> correlation = section.binary();
                case SUBSCRIPTION_ID -> section.number();
                case TOPIC_ALIAS -> section.u16();
                case USER -> user.add(new byte[][] {section.text(), section.text()});
                default -> throw new BlockDamaged(
                        String.format("property 0x%02x is unknown or not allowed in this packet", identifier));
            }
            if (user.size() > Bounds.USER_PROPERTIES) {
                throw new BlockDamaged("more than " + Bounds.USER_PROPERTIES + " user properties");
            }
        }
        return new Properties(format, expiry, response, correlation, content, user);
    }

    /** The section of a packet, with its length. */
    public byte[] encoded() {
        Encoded out = new Encoded();
        if (payloadFormat != null) {
            if (payloadFormat != 0 && payloadFormat != 1) {
                throw new LocalError(payloadFormat + " given for a property that may be 0 or 1");
            }
            out.put(PAYLOAD_FORMAT).put(payloadFormat);
        }
        if (messageExpiryS != null) {
            if (messageExpiryS < 0 || messageExpiryS > 0xFFFF_FFFFL) {
                throw new LocalError("message_expiry_s is 0 to 4294967295, not " + messageExpiryS);
            }
            out.put(MESSAGE_EXPIRY).u16((int) (messageExpiryS >> 16)).u16((int) (messageExpiryS & 0xFFFF));
        }
        if (contentType != null) {
            out.put(CONTENT_TYPE).text(contentType);
        }
        if (responseTopic != null) {
            out.put(RESPONSE_TOPIC).text(responseTopic);
        }
        if (correlationData != null) {
            out.put(CORRELATION_DATA).binary(correlationData);
        }
        for (byte[][] pair : user) {
            out.put(USER).text(pair[0]).text(pair[1]);
        }
        return out.withLength();
    }

    /** One field after the other, each with its bounds proved. */
    private static final class Section {
        private final byte[] data;
        private final int end;
        private int at;

        Section(byte[] data, int at, int end) {
            this.data = data;
            this.at = at;
            this.end = end;
        }

        int left() {
            return end - at;
        }

        int byteAt() {
            if (at >= end) {
                throw new BlockDamaged("the properties of a message end too early");
            }
            return data[at++] & 0xFF;
        }

        int u16() {
            return byteAt() << 8 | byteAt();
        }

        /** A variable byte integer (MQTT 5, 1.5.5). */
        long number() {
            long value = 0;
            for (int shift = 0; shift < 28; shift += 7) {
                int one = byteAt();
                value |= (long) (one & 127) << shift;
                if (one < 128) {
                    return value;
                }
            }
            throw new BlockDamaged("a length in the properties of a message is too long");
        }

        byte[] binary() {
            int length = u16();
            if (length > left()) {
                throw new BlockDamaged("the properties of a message end too early");
            }
            at += length;
            return Arrays.copyOfRange(data, at - length, at);
        }

        byte[] text() {
            byte[] found = binary();
            if (!UTF8String.fromBytes(found).isValid()) {
                throw new BlockDamaged("a string of a message is not UTF-8");
            }
            return found;
        }
    }

    /** Bytes that grow. */
    private static final class Encoded {
        private byte[] data = new byte[64];
        private int size;

        Encoded put(int one) {
            if (size == data.length) {
                data = Arrays.copyOf(data, 2 * size);
            }
            data[size++] = (byte) one;
            return this;
        }

        Encoded u16(int value) {
            return put(value >> 8).put(value);
        }

        Encoded binary(byte[] value) {
            if (value.length > Bounds.STRING_BYTES) {
                throw new LocalError("a string or binary field of " + value.length + " bytes is longer than "
                        + Bounds.STRING_BYTES);
            }
            u16(value.length);
            for (byte one : value) {
                put(one);
            }
            return this;
        }

        Encoded text(byte[] value) {
            if (new String(value, StandardCharsets.UTF_8).indexOf('\0') >= 0) {
                throw new LocalError("a string to be sent contains U+0000");
            }
            return binary(value);
        }

        byte[] withLength() {
            Encoded head = new Encoded();
            int left = size;
            do {
                head.put(left > 127 ? left & 127 | 128 : left);
                left >>= 7;
            } while (left > 0);
            byte[] whole = Arrays.copyOf(head.data, head.size + size);
            System.arraycopy(data, 0, whole, head.size, size);
            return whole;
        }
    }
}
