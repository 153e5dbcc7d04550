package millrace.spark.blocks;

import java.nio.ByteBuffer;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import millrace.spark.common.Bounds;
import org.apache.spark.sql.execution.vectorized.ConstantColumnVector;
import org.apache.spark.sql.execution.vectorized.OnHeapColumnVector;
import org.apache.spark.sql.execution.vectorized.WritableColumnVector;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.unsafe.types.UTF8String;

/**
 * The columns that come from MQTT 5 properties: null where a message has none. Properties differ little from message
 * to message: each distinct section is decoded once.
 */
final class Descriptions {
    private static final String CONTENT_TYPE = "content_type";
    private static final String PROPERTIES = "properties";
    private static final int MQTT_5 = 5;

    private final Part part;
    private final Map<ByteBuffer, Properties> known = new HashMap<>();
    /** Of the chosen rows of the block with this number. */
    private Properties[] found = new Properties[0];

    private boolean isAny;
    private long block = -1;

    Descriptions(Part part) {
        this.part = part;
    }

    static boolean isOne(String name) {
        return name.equals(CONTENT_TYPE) || name.equals(PROPERTIES);
    }

    /** A column that is made when a query asks for it: Spark prunes no columns of a stream. */
    ColumnVector column(StructField field) {
        return new Lazy(field);
    }

    private void decode() {
        if (block == part.number()) {
            return;
        }
        found = new Properties[part.count()];
        isAny = false;
        for (int row = 0; row < found.length; row++) {
            found[row] = find(part.row(row));
            isAny |= found[row] != null;
        }
        block = part.number();
    }

    private final class Lazy extends BlockVector {
        private final boolean isText;
        private ColumnVector made;
        private long madeOf = -1;

        Lazy(StructField field) {
            super(field.dataType(), Descriptions.this.part);
            isText = field.name().equals(CONTENT_TYPE);
        }

        private ColumnVector made() {
            if (madeOf != part.number()) {
                decode();
                made = isAny ? filled() : nothing();
                madeOf = part.number();
            }
            return made;
        }

        private ColumnVector nothing() {
            ConstantColumnVector column = new ConstantColumnVector(found.length, type);
            column.setNull();
            return column;
        }

        private ColumnVector filled() {
            OnHeapColumnVector column = new OnHeapColumnVector(found.length, type);
            for (int row = 0; row < found.length; row++) {
                if (isText) {
                    putBytes(column, row, found[row] == null ? null : found[row].contentType());
                } else {
                    putFields(column, row, found[row]);
                }
            }
            return column;
        }

        @Override
        public boolean hasNull() {
            return made().hasNull();
        }

        @Override
        public int numNulls() {
            return made().numNulls();
        }

        @Override
        public boolean isNullAt(int row) {
            return made().isNullAt(row);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return made().getUTF8String(row);
        }

        @Override
        public ColumnVector getChild(int ordinal) {
            return made().getChild(ordinal);
        }
    }

    /** The properties of a message; null where it has none. */
    private Properties find(int row) {
        int flags = part.flags(row);
        if (flags >> 4 != MQTT_5) {
            return null;
        }
        byte[] data = part.data;
        int end = part.payloadAt(row);
        long at = part.packets + Bytes.u32(data, part.packetPositions + 4 * row) + 1;
        // PUBLISH: type and flags, remaining length (1 to 4 bytes), topic, packet id above QoS 0 (MQTT 5, 3.3).
        for (int more = 0; more < 3 && at < end && data[(int) at] < 0; more++) {
            at++;
        }
        at++;
        if (at + 2 > end) {
            throw new BlockDamaged("the columns of a block do not fit its packets");
        }
        at += 2 + Bytes.u16big(data, (int) at) + ((flags & 3) != 0 ? 2 : 0);
        if (end - at <= 1) {
            return null;
        }
        ByteBuffer section = ByteBuffer.wrap(data, (int) at, (int) (end - at));
        Properties found = known.get(section);
        if (found == null) {
            found = Properties.read(data, (int) at, end);
            byte[] own = new byte[(int) (end - at)];
            System.arraycopy(data, (int) at, own, 0, own.length);
            if (known.size() >= Bounds.DESCRIPTIONS_KEPT) {
                known.clear();
            }
            known.put(ByteBuffer.wrap(own), found);
        }
        return found;
    }

    private static void putBytes(WritableColumnVector column, int row, byte[] value) {
        if (value == null) {
            column.putNull(row);
        } else {
            column.putByteArray(row, value);
        }
    }

    private static void putFields(WritableColumnVector column, int row, Properties given) {
        boolean isThere = given != null && given.hasFields();
        WritableColumnVector format = column.getChild(0);
        WritableColumnVector expiry = column.getChild(1);
        if (!isThere) {
            column.putNull(row);
        }
        if (isThere && given.payloadFormat() != null) {
            format.putInt(row, given.payloadFormat());
        } else {
            format.putNull(row);
        }
        if (isThere && given.messageExpiryS() != null) {
            expiry.putLong(row, given.messageExpiryS());
        } else {
            expiry.putNull(row);
        }
        putBytes(column.getChild(2), row, isThere ? given.responseTopic() : null);
        putBytes(column.getChild(3), row, isThere ? given.correlationData() : null);
        putUser(column.getChild(4), row, isThere ? given.user() : List.of());
    }

    private static void putUser(WritableColumnVector column, int row, List<byte[][]> user) {
        if (user.isEmpty()) {
            column.putNull(row);
            return;
        }
        WritableColumnVector pairs = column.arrayData();
        int at = pairs.getElementsAppended();
        for (byte[][] pair : user) {
            pairs.appendStruct(false);
            pairs.getChild(0).appendByteArray(pair[0], 0, pair[0].length);
            pairs.getChild(1).appendByteArray(pair[1], 0, pair[1].length);
        }
        column.putArray(row, at, user.size());
    }
}
