package millrace.spark.sink;

import com.fasterxml.jackson.databind.JsonNode;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.zip.CRC32C;
import millrace.spark.common.ConfigError;
import millrace.spark.common.LocalError;
import millrace.spark.common.Topics;
import millrace.spark.common.Words;

/** Which stream and shard a topic belongs to, by the rule of the nodes [rule 15]. */
final class Routes {
    /** Where a topic goes. */
    record Route(String stream, long shard) {}

    private record Stream(String name, List<Long> shards) {}

    /** A level of the filters with wildcards: what follows it, and the stream of the filter that ends here. */
    private static final class Level {
        final Map<String, Level> below = new HashMap<>();
        Stream stream;

        /** The stream of the most specific filter: level by level, a name before `+` before `#`. */
        Stream find(String[] topic, int depth) {
            if (depth < topic.length) {
                for (String name : List.of(topic[depth], "+")) {
                    Level level = below.get(name);
                    Stream found = level == null ? null : level.find(topic, depth + 1);
                    if (found != null) {
                        return found;
                    }
                }
            } else if (stream != null) {
                return stream;
            }
            // "sport/#" takes "sport" too (4.7.1.2).
            Level rest = below.get("#");
            return rest == null ? null : rest.stream;
        }
    }

    private final String only;
    private final Level root = new Level();
    private final Map<String, Stream> literal = new HashMap<>();
    private Stream other;

    Routes(JsonNode rows, String only) {
        this.only = only;
        boolean isThere = only == null;
        for (JsonNode row : rows) {
            List<Long> open = new ArrayList<>();
            for (JsonNode shard : row.path("shard_list")) {
                if (!shard.path("sealed").asBoolean()) {
                    open.add(shard.path("shard").asLong());
                }
            }
            Stream stream = new Stream(row.path("name").asText(), open);
            isThere |= stream.name.equals(only);
            other = stream.name.equals("default") ? stream : other;
            for (JsonNode filter : row.path("filters")) {
                add(filter.asText(), stream);
            }
        }
        if (!isThere) {
            throw new ConfigError("there is no stream " + Words.quoted(only));
        }
    }

    private void add(String filter, Stream stream) {
        if (filter.indexOf('+') < 0 && filter.indexOf('#') < 0) {
            literal.put(filter, stream);
            return;
        }
        Level level = root;
        for (String name : Topics.levels(filter)) {
            level = level.below.computeIfAbsent(name, key -> new Level());
        }
        level.stream = stream;
    }

    Route find(String topic) {
        if (topic.startsWith("$")) {
            throw new LocalError("topic " + Words.quoted(topic) + " belongs to no stream: it begins with $");
        }
        Stream stream = literal.get(topic);
        stream = stream == null ? root.find(Topics.levels(topic), 0) : stream;
        stream = stream == null ? other : stream;
        if (stream == null || (only != null && !stream.name.equals(only))) {
            String name = stream == null ? "default" : stream.name;
            throw new LocalError("topic " + Words.quoted(topic) + " belongs to stream " + Words.quoted(name)
                    + ", not to " + Words.quoted(String.valueOf(only)));
        }
        if (stream.shards.isEmpty()) {
            throw new LocalError("topic " + Words.quoted(topic) + " belongs to stream " + Words.quoted(stream.name)
                    + ", which keeps no log");
        }
        CRC32C sum = new CRC32C();
        sum.update(topic.getBytes(StandardCharsets.UTF_8));
        return new Route(stream.name, stream.shards.get((int) (sum.getValue() % stream.shards.size())));
    }
}
