package millrace.spark.source;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.TreeSet;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.CompletionException;
import millrace.spark.common.Bounds;
import millrace.spark.common.ConfigError;
import millrace.spark.http.Threads;
import millrace.spark.offsets.Extent;
import millrace.spark.offsets.Place;
import millrace.spark.offsets.Planning;
import millrace.spark.offsets.Position;
import millrace.spark.offsets.Span;
import millrace.spark.offsets.Start;
import millrace.spark.options.Options;
import org.apache.spark.sql.connector.read.InputPartition;

/** What planning asks of the nodes, for batch queries and for streams. */
final class Shards {
    private Shards() {}

    /** The shards that the options name. */
    static Map<Long, Extent> extents(ClusterReader cluster, Options given) {
        Map<Long, Extent> extents = given.pattern == null
                ? cluster.extents(given.streams)
                : cluster.extentsMatching(name -> given.pattern.matcher(name).matches());
        if (given.shards == null) {
            return extents;
        }
        Map<Long, Extent> chosen = new LinkedHashMap<>();
        for (long shard : new TreeSet<>(given.shards)) {
            if (!extents.containsKey(shard)) {
                throw new ConfigError(
                        "assign names shard " + shard + "; the stream has " + Planning.listed(extents));
            }
            chosen.put(shard, extents.get(shard));
        }
        return chosen;
    }

    /** Offsets for what an option says; a time is looked up in its shard. */
    static Position position(
            ClusterReader cluster, String option, Start value, Map<Long, Extent> extents, Place rest) {
        Map<Long, Long> found = new LinkedHashMap<>();
        Map<Long, CompletableFuture<Long>> lookedUp = new LinkedHashMap<>();
        Planning.resolve(option, value, extents, rest).forEach((shard, place) -> {
            if (place.kind() == Place.Kind.OFFSET) {
                found.put(shard, place.value());
                return;
            }
            if (lookedUp.size() >= Bounds.LOOKUPS) {
                lookedUp.values().stream().limit(lookedUp.size() - Bounds.LOOKUPS + 1L).forEach(Shards::result);
            }
            Extent extent = extents.get(shard);
            lookedUp.put(
                    shard,
                    CompletableFuture.supplyAsync(
                            () -> cluster.offsetAt(shard, extent, place.value()), Threads.POOL));
        });
        lookedUp.forEach((shard, one) -> found.put(shard, result(one)));
        return new Position(found);
    }

    private static long result(CompletableFuture<Long> one) {
        try {
            return one.join();
        } catch (CompletionException error) {
            throw error.getCause() instanceof RuntimeException own ? own : error;
        }
    }

    static InputPartition[] tasks(List<Span> spans, Options given, String node) {
        return Planning.plan(spans, given.tasksLeast, given.taskRowsMost).stream()
                .map(bundle -> new Task(new ArrayList<>(bundle), node))
                .toArray(InputPartition[]::new);
    }

    static Map<Long, String> streams(Map<Long, Extent> extents) {
        Map<Long, String> found = new LinkedHashMap<>();
        extents.forEach((shard, extent) -> found.put(shard, extent.stream()));
        return found;
    }
}
