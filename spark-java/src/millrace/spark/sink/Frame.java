package millrace.spark.sink;

import java.io.Serializable;
import java.util.Arrays;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import millrace.spark.common.ConfigError;
import millrace.spark.common.LocalError;
import millrace.spark.common.Words;
import millrace.spark.options.Sentences;
import millrace.spark.options.SinkOptions;
import millrace.spark.common.Columns;
import org.apache.spark.sql.types.BinaryType;
import org.apache.spark.sql.types.BooleanType;
import org.apache.spark.sql.types.ByteType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.IntegerType;
import org.apache.spark.sql.types.LongType;
import org.apache.spark.sql.types.ShortType;
import org.apache.spark.sql.types.StringType;
import org.apache.spark.sql.types.StructField;
import org.apache.spark.sql.types.StructType;

/** The columns of a frame that is written, and where each one is. */
final class Frame implements Serializable {
    private static final long serialVersionUID = 1L;
    private static final List<Class<? extends DataType>> WHOLE =
            List.of(ByteType.class, ShortType.class, IntegerType.class, LongType.class);
    private static final Map<String, List<Class<? extends DataType>>> COLUMNS = columns();
    /**
     * Columns of the source that a row to be written cannot have. INSERT INTO a view sets those that it does not name
     * to null.
     */
    private static final Set<String> GIVEN_BY_THE_NODE = Set.of("shard", "offset", "timestamp", "publisher");

    private final StructType schema;

    /** ConfigError unless the frame can be written: its columns are known, and topic and payload are there. */
    Frame(StructType schema, SinkOptions options) {
        this.schema = schema;
        for (StructField field : schema.fields()) {
            if (!GIVEN_BY_THE_NODE.contains(field.name())) {
                check(field);
            }
        }
        if (!has("payload")) {
            throw new ConfigError("there is no column 'payload'");
        }
        if (!has("topic") && options.topic == null) {
            throw new ConfigError("there is no column 'topic', and no option topic for all rows");
        }
        if (has("topic") && options.topic != null) {
            throw new ConfigError("give the column 'topic' or the option topic, not both");
        }
    }

    private static Map<String, List<Class<? extends DataType>>> columns() {
        Map<String, List<Class<? extends DataType>>> found = new LinkedHashMap<>();
        found.put("topic", List.of(StringType.class));
        found.put("payload", List.of(BinaryType.class, StringType.class));
        found.put("qos", WHOLE);
        found.put("retain", List.of(BooleanType.class));
        found.put("content_type", List.of(StringType.class));
        found.put("properties", List.of(StructType.class));
        return found;
    }

    /** Whether the frame has columns of the source, as it has for INSERT INTO a view over a stream. */
    static boolean isInsert(StructType schema) {
        return Arrays.stream(schema.fieldNames()).anyMatch(GIVEN_BY_THE_NODE::contains);
    }

    private static void check(StructField field) {
        List<Class<? extends DataType>> kinds = COLUMNS.get(field.name());
        if (kinds == null) {
            throw new ConfigError(noColumn(field.name()));
        }
        if (kinds.stream().noneMatch(kind -> kind.isInstance(field.dataType()))) {
            throw new ConfigError("column " + Words.quoted(field.name()) + " is "
                    + field.dataType().simpleString() + ", not " + wanted(field.name()));
        }
        if (field.dataType() instanceof StructType given) {
            for (StructField one : given.fields()) {
                boolean isKnown = Arrays.asList(Columns.PROPERTIES.fieldNames()).contains(one.name());
                String type = one.dataType().simpleString();
                if (!isKnown
                        || !Columns.PROPERTIES.apply(one.name()).dataType().simpleString().equals(type)) {
                    throw new ConfigError("column 'properties' has a field " + Words.quoted(one.name()) + " of " + type
                            + "; its fields are those of " + Columns.PROPERTIES.simpleString());
                }
            }
        }
    }

    private static String wanted(String name) {
        return switch (name) {
            case "payload" -> "binary or string";
            case "qos" -> "tinyint or smallint or int or bigint";
            case "retain" -> "boolean";
            case "properties" -> Columns.PROPERTIES.simpleString();
            default -> "string";
        };
    }

    static String noColumn(String name) {
        return "there is no column " + Words.quoted(name) + " to write; there are "
                + String.join(", ", COLUMNS.keySet())
                + ": select those, or put the others into the payload, for example with to_json(struct(...))";
    }

    boolean has(String name) {
        return at(name) >= 0;
    }

    /** -1 where there is no such column. */
    int at(String name) {
        return Arrays.asList(schema.fieldNames()).indexOf(name);
    }

    DataType type(String name) {
        return schema.apply(name).dataType();
    }

    /** Where the columns are that no row may set. */
    Map<Integer, String> givenByTheNode() {
        Map<Integer, String> found = new LinkedHashMap<>();
        for (String name : GIVEN_BY_THE_NODE) {
            if (has(name)) {
                found.put(at(name), name);
            }
        }
        return found;
    }

    /** What a mode that is not append is told. */
    static LocalError notAppended(boolean isStream) {
        return new ConfigError(
                isStream
                        ? Sentences.UPDATE_MODE
                        : "a log is only ever appended to: write with mode(\"append\")");
    }
}
