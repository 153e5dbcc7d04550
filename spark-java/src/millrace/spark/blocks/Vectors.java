package millrace.spark.blocks;

import java.util.Arrays;
import millrace.spark.common.LocalError;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnVector;
import org.apache.spark.sql.vectorized.ColumnarBatch;
import org.apache.spark.unsafe.types.UTF8String;

/** The columns that a query wants, over one block after the other. */
public final class Vectors {
    private static final int FLAG_QOS = 3;
    private static final int FLAG_RETAIN = 4;

    private final Part part;
    private final ColumnarBatch batch;

    public Vectors(StructType schema, Part part) {
        this.part = part;
        Descriptions descriptions = new Descriptions(part);
        ColumnVector[] columns = new ColumnVector[schema.length()];
        for (int at = 0; at < columns.length; at++) {
            StructField field = schema.fields()[at];
            columns[at] = Descriptions.isOne(field.name()) ? descriptions.column(field) : make(field, part);
        }
        batch = new ColumnarBatch(columns);
    }

    /** The chosen rows of the block that the part looks at; good until the part looks at the next one. */
    public ColumnarBatch batch() {
        batch.setNumRows(part.count());
        return batch;
    }

    private static ColumnVector make(StructField field, Part part) {
        return switch (field.name()) {
            case "topic" -> new Topic(part);
            case "shard" -> new Shard(part);
            case "offset" -> new Offset(part);
            case "timestamp" -> new Timestamp(part);
            case "payload" -> new Payload(part);
            case "qos" -> new Qos(part);
            case "retain" -> new Retain(part);
            case "publisher" -> new Publisher(part);
            default -> throw new LocalError("there is no column " + field.name());
        };
    }

    private static final class Topic extends BlockVector {
        Topic(Part part) {
            super(DataTypes.StringType, part);
        }

        @Override
        public UTF8String getUTF8String(int row) {
            return part.topics.word(part.topicId(part.row(row)));
        }
    }

    private static final class Shard extends BlockVector {
        Shard(Part part) {
            super(DataTypes.IntegerType, part);
        }

        @Override
        public int getInt(int row) {
            return Math.toIntExact(part.header.shard());
        }
    }

    private static final class Offset extends BlockVector {
        Offset(Part part) {
            super(DataTypes.LongType, part);
        }

        @Override
        public long getLong(int row) {
            return part.header.baseOffset() + part.row(row);
        }
    }

    private static final class Timestamp extends BlockVector {
        Timestamp(Part part) {
            super(DataTypes.TimestampType, part);
        }

        @Override
        public long getLong(int row) {
            return part.timeUs(part.row(row));
        }
    }

    private static final class Payload extends BlockVector {
        Payload(Part part) {
            super(DataTypes.BinaryType, part);
        }

        @Override
        public byte[] getBinary(int row) {
            int own = part.row(row);
            int at = part.payloadAt(own);
            return Arrays.copyOfRange(part.data, at, at + part.payloadBytes(own));
        }
    }

    private static final class Qos extends BlockVector {
        Qos(Part part) {
            super(DataTypes.IntegerType, part);
        }

        @Override
        public int getInt(int row) {
            return part.flags(part.row(row)) & FLAG_QOS;
        }
    }

    private static final class Retain extends BlockVector {
        Retain(Part part) {
            super(DataTypes.BooleanType, part);
        }

        @Override
        public boolean getBoolean(int row) {
            return (part.flags(part.row(row)) & FLAG_RETAIN) != 0;
        }
    }

    private static final class Publisher extends BlockVector {
        Publisher(Part part) {
            super(DataTypes.StringType, part);
        }

        @Override
        public boolean hasNull() {
            return true;
        }

        @Override
        public int numNulls() {
            int found = 0;
            for (int row = 0; row < part.count(); row++) {
                found += isNullAt(row) ? 1 : 0;
            }
            return found;
        }

        @Override
        public boolean isNullAt(int row) {
            return part.publisherId(part.row(row)) == -1;
        }

        @Override
        public UTF8String getUTF8String(int row) {
            int id = part.publisherId(part.row(row));
            return id == -1 ? null : part.names.word(id);
        }
    }
}
