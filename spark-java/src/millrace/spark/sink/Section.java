package millrace.spark.sink;

import java.nio.ByteBuffer;
import java.nio.ByteOrder;
import java.util.Arrays;
import millrace.spark.common.Bounds;
import millrace.spark.common.LocalError;

/** Packets for one block of a shard, which grow until the block is full. */
final class Section {
    private static final int HEAD_BYTES = 16;
    private static final int START_BYTES = 4096;
    private static final int MQTT_5 = 5;

    final Routes.Route route;
    final int version;
    private byte[] data = new byte[START_BYTES];
    private int size = HEAD_BYTES;
    private int rows;

    Section(Routes.Route route, int version) {
        this.route = route;
        this.version = version;
    }

    int rows() {
        return rows;
    }

    /** Of the packets alone. */
    int sizeBytes() {
        return size - HEAD_BYTES;
    }

    /**
     * Whether a message still fits. One that is larger than a block has one of its own.
     *
     * @param bytes topic, properties and payload
     */
    boolean hasRoom(long bytes) {
        long weight = sizeBytes() + (long) rows * Bounds.SECTION_ROW_BYTES;
        return rows == 0
                || (rows < Bounds.BLOCK_MESSAGES
                        && weight + bytes + 2L * Bounds.SECTION_ROW_BYTES <= Bounds.SECTION_BYTES);
    }

    /** A PUBLISH packet (MQTT 5, 3.3). The properties hold their length, and are left out by an older version. */
    void add(int first, byte[] topic, byte[] properties, byte[] payload) {
        boolean hasId = (first & 6) != 0;
        int more = version == MQTT_5 ? properties.length : 0;
        long length = 2L + topic.length + (hasId ? 2 : 0) + more + payload.length;
        if (length > Bounds.PACKET_BYTES) {
            throw new LocalError("a message of " + length + " bytes is larger than any MQTT packet");
        }
        reserve((int) length + 5);
        data[size++] = (byte) first;
        for (int left = (int) length; ; left >>= 7) {
            data[size++] = (byte) (left > 127 ? left & 127 | 128 : left);
            if (left <= 127) {
                break;
            }
        }
        data[size++] = (byte) (topic.length >> 8);
        data[size++] = (byte) topic.length;
        put(topic, topic.length);
        if (hasId) {
            data[size++] = 0;
            data[size++] = 1;
        }
        put(properties, more);
        put(payload, payload.length);
        rows++;
    }

    private void put(byte[] bytes, int length) {
        System.arraycopy(bytes, 0, data, size, length);
        size += length;
    }

    private void reserve(int bytes) {
        long wanted = (long) size + bytes;
        if (wanted > data.length) {
            data = Arrays.copyOf(data, (int) Math.max(wanted, Math.min(2L * data.length, Integer.MAX_VALUE - 8)));
        }
    }

    /** On the way to a node: shard, block, MQTT version, bytes of packets, and the packets. */
    byte[] numbered(int block) {
        ByteBuffer.wrap(data)
                .order(ByteOrder.LITTLE_ENDIAN)
                .putInt((int) route.shard())
                .putInt(block)
                .putInt(version)
                .putInt(sizeBytes());
        return Arrays.copyOf(data, size);
    }
}
