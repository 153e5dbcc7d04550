package millrace.spark.common;

import java.util.ArrayList;
import java.util.List;
import java.util.Locale;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of a message in Spark. */
public final class Columns {
    public static final StructType PROPERTIES = new StructType()
            .add("payload_format", DataTypes.IntegerType)
            .add("message_expiry_s", DataTypes.LongType)
            .add("response_topic", DataTypes.StringType)
            .add("correlation_data", DataTypes.BinaryType)
            // A list and not a map: MQTT lets a name stand there twice, and keeps the order.
            .add(
                    "user",
                    DataTypes.createArrayType(new StructType()
                            .add("name", DataTypes.StringType)
                            .add("value", DataTypes.StringType)));

    public static final StructType SCHEMA = new StructType()
            .add("topic", DataTypes.StringType)
            .add("shard", DataTypes.IntegerType)
            .add("offset", DataTypes.LongType)
            .add("timestamp", DataTypes.TimestampType)
            .add("payload", DataTypes.BinaryType)
            .add("qos", DataTypes.IntegerType)
            .add("retain", DataTypes.BooleanType)
            .add("publisher", DataTypes.StringType)
            .add("content_type", DataTypes.StringType)
            .add("properties", PROPERTIES);

    private Columns() {}

    /** ConfigError unless every field is a column of the source with its type. */
    public static void check(StructType schema) {
        List<String> names = List.of(SCHEMA.fieldNames());
        for (StructField field : schema.fields()) {
            if (!names.contains(field.name())) {
                throw new ConfigError("there is no column " + Words.quoted(field.name()) + "; there are "
                        + String.join(", ", names));
            }
            DataType own = SCHEMA.apply(field.name()).dataType();
            if (!own.equals(field.dataType())) {
                throw new ConfigError("column " + Words.quoted(field.name()) + " is " + own.simpleString() + ", not "
                        + field.dataType().simpleString() + "; cast it after reading");
            }
        }
    }

    /** Of a schema that Spark has pruned, the columns as this source has them. */
    public static StructType wanted(StructType required) {
        List<StructField> fields = new ArrayList<>();
        for (StructField field : required.fields()) {
            String name = field.name().toLowerCase(Locale.ROOT);
            fields.add(SCHEMA.apply(name));
        }
        return new StructType(fields.toArray(new StructField[0]));
    }
}
