package millrace.spark.offsets;

import com.fasterxml.jackson.core.JsonProcessingException;
import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import millrace.spark.common.Json;
import millrace.spark.common.LocalError;
import org.apache.spark.sql.connector.read.streaming.Offset;

/**
 * The next offset to read in each shard. As JSON it is what Spark writes into its checkpoint, in the same form as the
 * Python source, so that either goes on where the other stopped. A position may lack a shard that the stream has (the
 * query begins it at 0) and have one that the stream lacks (it stays where it is). It never goes back [rule 29].
 */
public final class Position extends Offset {
    private final LinkedHashMap<Long, Long> offsets;

    public Position(Map<Long, Long> offsets) {
        this.offsets = new LinkedHashMap<>(offsets);
    }

    public static Position parse(String json) {
        Map<Long, Long> found = new TreeMap<>();
        try {
            for (Map.Entry<String, JsonNode> one : Json.read(json).properties()) {
                if (!one.getValue().canConvertToLong()) {
                    throw new NumberFormatException();
                }
                found.put(Long.valueOf(one.getKey()), one.getValue().asLong());
            }
        } catch (JsonProcessingException | NumberFormatException error) {
            throw new LocalError("the checkpoint has no position of this source: " + json);
        }
        return new Position(found);
    }

    public Map<Long, Long> offsets() {
        return offsets;
    }

    public long at(long shard) {
        return offsets.getOrDefault(shard, 0L);
    }

    public boolean has(long shard) {
        return offsets.containsKey(shard);
    }

    /** What lies between this and a later position, without the shards where nothing does. */
    public List<Span> until(Position end, Map<Long, String> streams) {
        List<Span> found = new ArrayList<>();
        new TreeMap<>(end.offsets).forEach((shard, after) -> {
            if (after > at(shard)) {
                found.add(new Span(shard, at(shard), after, streams.getOrDefault(shard, "")));
            }
        });
        return found;
    }

    @Override
    public String json() {
        StringBuilder out = new StringBuilder("{");
        new TreeMap<>(offsets).forEach((shard, offset) -> {
            out.append(out.length() > 1 ? ", " : "").append('"').append(shard).append("\": ").append(offset);
        });
        return out.append("}").toString();
    }
}
