package millrace.spark.sink;

import java.io.Serializable;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import millrace.spark.blocks.Properties;
import millrace.spark.common.LocalError;
import millrace.spark.options.SinkOptions;
import millrace.spark.common.Columns;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.catalyst.util.ArrayData;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.unsafe.types.UTF8String;

/** Where the parts of a message are in a row of the frame. */
final class Row implements Serializable {
    private static final long serialVersionUID = 1L;

    private final int topic;
    private final int payload;
    private final boolean isText;
    private final int qos;
    private final DataType qosType;
    private final int retain;
    private final int contentType;
    private final int properties;
    private final int[] fields;
    private final int fieldCount;
    private final Map<Integer, String> givenByTheNode;
    private final UTF8String oneTopic;
    private final int oneQos;
    private final int oneRetain;

    Row(Frame frame, SinkOptions options) {
        topic = frame.at("topic");
        payload = frame.at("payload");
        isText = frame.type("payload") instanceof StringType;
        qos = frame.at("qos");
        qosType = qos < 0 ? null : frame.type("qos");
        retain = frame.at("retain");
        contentType = frame.at("content_type");
        properties = frame.at("properties");
        fields = new int[Columns.PROPERTIES.length()];
        StructType given = properties < 0 ? new StructType() : (StructType) frame.type("properties");
        List<String> names = List.of(given.fieldNames());
        for (int at = 0; at < fields.length; at++) {
            fields[at] = names.indexOf(Columns.PROPERTIES.fieldNames()[at]);
        }
        fieldCount = names.size();
        givenByTheNode = frame.givenByTheNode();
        oneTopic = UTF8String.fromString(options.topic);
        oneQos = options.qos;
        oneRetain = options.retain ? 1 : 0;
    }

    /** LocalError for a row that sets what only a node can give. */
    void check(InternalRow row) {
        if (!givenByTheNode.isEmpty()) {
            givenByTheNode.forEach((at, name) -> {
                if (!row.isNullAt(at)) {
                    throw new LocalError(Frame.noColumn(name));
                }
            });
        }
    }

    /** Good until the next row. */
    UTF8String topic(InternalRow row) {
        if (topic >= 0 && row.isNullAt(topic)) {
            throw new LocalError("1 rows have no topic");
        }
        return topic < 0 ? oneTopic : row.getUTF8String(topic);
    }

    byte[] payload(InternalRow row) {
        if (row.isNullAt(payload)) {
            throw new LocalError("1 rows have no payload; an empty one is written as X''");
        }
        return isText ? row.getUTF8String(payload).getBytes() : row.getBinary(payload);
    }

    /** The first byte of the packet: null is what the options say. */
    int first(InternalRow row) {
        long level = qos < 0 || row.isNullAt(qos) ? oneQos : whole(row);
        if (level < 0 || level > 2) {
            throw new LocalError("qos is 0 to 2, not " + level + " to " + level);
        }
        int kept = retain < 0 || row.isNullAt(retain) ? oneRetain : row.getBoolean(retain) ? 1 : 0;
        return 0x30 | (int) level << 1 | kept;
    }

    private long whole(InternalRow row) {
        if (qosType instanceof ByteType) {
            return row.getByte(qos);
        }
        if (qosType instanceof ShortType) {
            return row.getShort(qos);
        }
        if (qosType instanceof IntegerType) {
            return row.getInt(qos);
        }
        assert qosType instanceof LongType : "the frame was checked";
        return row.getLong(qos);
    }

    /** Encoded, with their length; null where the row has none. */
    byte[] properties(InternalRow row) {
        byte[] content = contentType < 0 || row.isNullAt(contentType)
                ? null
                : row.getUTF8String(contentType).getBytes();
        InternalRow given =
                properties < 0 || row.isNullAt(properties) ? null : row.getStruct(properties, fieldCount);
        if (content == null && given == null) {
            return null;
        }
        boolean[] has = new boolean[fields.length];
        for (int at = 0; given != null && at < fields.length; at++) {
            has[at] = fields[at] >= 0 && !given.isNullAt(fields[at]);
        }
        return new Properties(
                        has[0] ? given.getInt(fields[0]) : null,
                        has[1] ? given.getLong(fields[1]) : null,
                        has[2] ? given.getUTF8String(fields[2]).getBytes() : null,
                        has[3] ? given.getBinary(fields[3]) : null,
                        content,
                        has[4] ? user(given.getArray(fields[4])) : List.of())
                .encoded();
    }

    private static List<byte[][]> user(ArrayData pairs) {
        List<byte[][]> found = new ArrayList<>();
        for (int at = 0; at < pairs.numElements(); at++) {
            InternalRow pair = pairs.isNullAt(at) ? null : pairs.getStruct(at, 2);
            if (pair == null || pair.isNullAt(0) || pair.isNullAt(1)) {
                throw new LocalError("a user property has no name or no value");
            }
            found.add(new byte[][] {
                pair.getUTF8String(0).getBytes(), pair.getUTF8String(1).getBytes()
            });
        }
        return found;
    }
}
