package millrace.spark;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;
import java.io.BufferedReader;
import java.io.IOException;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.HashSet;
import java.util.Iterator;
import java.util.Map;
import java.util.HashMap;
import java.util.Set;
import millrace.spark.blocks.Choice;
import millrace.spark.blocks.Part;
import millrace.spark.blocks.Vectors;
import millrace.spark.blocks.Walk;
import millrace.spark.common.Columns;
import millrace.spark.common.Json;
import millrace.spark.common.LocalError;
import millrace.spark.options.Options;
import millrace.spark.options.SinkOptions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.types.ArrayType;
import org.apache.spark.sql.types.DataType;
import org.apache.spark.sql.types.DataTypes;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.catalyst.util.ArrayData;

/** For tests: a question in each line of the input, its answer in a line of the output, both in JSON. */
public final class Probe {
    private Probe() {}

    public static void main(String[] arguments) throws IOException {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.UTF_8));
        for (String line = in.readLine(); line != null; line = in.readLine()) {
            JsonNode asked = Json.read(line);
            ObjectNode answer = Json.object();
            try {
                if (asked.has("data")) {
                    rows(asked, answer.putArray("batches"));
                } else if (asked.has("read")) {
                    Options.parse(texts(asked.path("read")));
                } else {
                    SinkOptions.parse(texts(asked.path("write")), asked.path("view").asBoolean());
                }
            } catch (LocalError error) {
                answer.put("error", error.getMessage()).put("kind", error.getClass().getSimpleName());
            }
            System.out.write(Json.bytes(answer));
            System.out.println();
        }
    }

    private static Map<String, String> texts(JsonNode fields) {
        Map<String, String> found = new HashMap<>();
        fields.properties().forEach(one -> found.put(one.getKey(), one.getValue().asText()));
        return found;
    }

    /** The chosen rows of these blocks, batch by batch, as Spark gets them. */
    private static void rows(JsonNode asked, ArrayNode batches) {
        byte[] data = Base64.getDecoder().decode(asked.path("data").asText());
        Set<String> topics = asked.path("topics").isArray() ? new HashSet<>() : null;
        asked.path("topics").forEach(topic -> topics.add(topic.asText()));
        Choice choice = new Choice(
                asked.path("start").asLong(),
                asked.path("end").asLong(),
                topics == null ? null : topics::contains,
                Long.MIN_VALUE,
                asked.path("until").asLong(Long.MAX_VALUE));
        StructType schema = Columns.SCHEMA;
        Part part = new Part();
        Vectors vectors = new Vectors(schema, part);
        Walk walk = new Walk(data, data.length, choice);
        while (walk.next(part)) {
            ArrayNode batch = batches.addArray();
            for (Iterator<InternalRow> all = vectors.batch().rowIterator(); all.hasNext(); ) {
                put(batch.addObject(), all.next(), schema);
            }
        }
        part.close();
    }

    private static void put(ObjectNode out, InternalRow row, StructType schema) {
        for (int at = 0; at < schema.length(); at++) {
            String name = schema.fields()[at].name();
            DataType type = schema.fields()[at].dataType();
            if (row.isNullAt(at)) {
                out.putNull(name);
            } else if (type.equals(DataTypes.StringType)) {
                out.put(name, row.getUTF8String(at).toString());
            } else if (type.equals(DataTypes.BinaryType)) {
                out.put(name, row.getBinary(at));
            } else if (type.equals(DataTypes.BooleanType)) {
                out.put(name, row.getBoolean(at));
            } else if (type.equals(DataTypes.IntegerType)) {
                out.put(name, row.getInt(at));
            } else if (type instanceof StructType fields) {
                put(out.putObject(name), row.getStruct(at, fields.length()), fields);
            } else if (type instanceof ArrayType array) {
                ArrayData pairs = row.getArray(at);
                ArrayNode list = out.putArray(name);
                for (int pair = 0; pair < pairs.numElements(); pair++) {
                    put(list.addObject(), pairs.getStruct(pair, 2), (StructType) array.elementType());
                }
            } else {
                out.put(name, row.getLong(at));
            }
        }
    }
}
