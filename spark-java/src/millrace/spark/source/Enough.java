package millrace.spark.source;

import com.fasterxml.jackson.databind.JsonNode;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Set;

/**
 * Whether the answers of some nodes say all that the others could add: so many nodes answered that every shard has a
 * replica among them, and for every shard that is written to its leader is among them too.
 */
final class Enough {
    private Enough() {}

    static boolean is(List<List<JsonNode>> answers, int nodes) {
        List<JsonNode> rows = new ArrayList<>();
        answers.forEach(rows::addAll);
        int replicas = rows.stream().mapToInt(row -> row.path("replicas").asInt(1)).min().orElse(1);
        if (rows.isEmpty() || answers.size() <= Math.max(nodes / 2, nodes - replicas)) {
            return false;
        }
        Map<String, Set<Long>> open = new HashMap<>();
        Set<Long> led = new HashSet<>();
        for (JsonNode row : rows) {
            if (!row.path("replication").asText().equals("quorum")) {
                return false;
            }
            for (JsonNode shard : row.path("shard_list")) {
                if (!shard.path("sealed").asBoolean()) {
                    long number = shard.path("shard").asLong();
                    open.computeIfAbsent(row.path("name").asText(), name -> new HashSet<>()).add(number);
                    if (shard.path("role").asText().equals("leader")) {
                        led.add(number);
                    }
                }
            }
        }
        for (JsonNode row : rows) {
            Set<Long> shards = open.getOrDefault(row.path("name").asText(), Set.of());
            boolean isStored = !row.path("capture").asText().equals("none");
            if (isStored && (shards.size() != row.path("shards").asInt() || !led.containsAll(shards))) {
                return false;
            }
        }
        return true;
    }
}
