package millrace.spark.offsets;

import java.io.Serializable;
import java.util.Map;
import java.util.TreeMap;

/**
 * What an option may say: a place for all shards, or, where that is null, a place for each of some shards, and the
 * stream of those whose stream was named.
 */
public record Start(Place all, TreeMap<Long, Place> values, TreeMap<Long, String> streams) implements Serializable {
    public static Start of(Place all) {
        return new Start(all, new TreeMap<>(), new TreeMap<>());
    }

    public static Start of(Map<Long, Place> values, Map<Long, String> streams) {
        return new Start(null, new TreeMap<>(values), new TreeMap<>(streams));
    }
}
