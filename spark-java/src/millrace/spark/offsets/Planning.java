package millrace.spark.offsets;

import java.util.ArrayList;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.stream.Collectors;
import millrace.spark.common.Bounds;
import millrace.spark.common.ConfigError;
import millrace.spark.common.Words;

/** What a query reads next. Plain values and arithmetic, no input or output. */
public final class Planning {
    private Planning() {}

    /** A place for every shard, without words. `rest` is for shards that are not named. */
    public static Map<Long, Place> resolve(String option, Start start, Map<Long, Extent> extents, Place rest) {
        Place other = start.all() == null ? rest : start.all();
        start.values().forEach((shard, value) -> {
            String name = start.streams().get(shard);
            if (!extents.containsKey(shard)
                    || (name != null && !name.equals(extents.get(shard).stream()))) {
                String of = name == null ? "" : " of stream " + Words.quoted(name);
                throw new ConfigError(option + " names shard " + shard + of + "; the stream has " + listed(extents));
            }
        });
        Map<Long, Place> found = new LinkedHashMap<>();
        extents.forEach((shard, extent) -> {
            Place value = start.values().getOrDefault(shard, other);
            if (value.kind() == Place.Kind.OFFSET && value.value() > extent.next()) {
                throw new ConfigError(option + ": offset " + value.value() + " of shard " + shard
                        + " is not there yet; the next is " + extent.next());
            }
            found.put(shard, switch (value.kind()) {
                case EARLIEST -> Place.offset(extent.first());
                case LATEST -> Place.offset(extent.next());
                default -> value;
            });
        });
        return found;
    }

    public static String listed(Map<Long, Extent> extents) {
        return new TreeMap<>(extents).keySet().stream().map(String::valueOf).collect(Collectors.joining(", "));
    }

    /**
     * As far as the next batch goes from `start`: to the end, or to a share of the limits for each shard. Shares are
     * in proportion to what waits, so no shard starves; where anything waits, something is read. Where a limit cuts,
     * the open shards of a stream wait until its sealed ones are read to their end.
     */
    public static Position advance(Position start, Map<Long, Extent> extents, Long rowsMost, Long bytesMost) {
        Map<Long, Long> end = new LinkedHashMap<>(start.offsets());
        extents.forEach((shard, extent) -> {
            // An empty shard that is new says nothing yet: a changed position makes Spark run a batch.
            if (start.has(shard) || extent.next() > 0) {
                end.put(shard, Math.max(start.at(shard), extent.next()));
            }
        });
        Map<Long, Long> waiting = new LinkedHashMap<>();
        end.forEach((shard, after) -> waiting.put(shard, after - start.at(shard)));
        if (portion(waiting, extents, rowsMost, bytesMost) >= 1) {
            return new Position(end);
        }
        Set<String> older = new HashSet<>();
        waiting.forEach((shard, count) -> {
            if (count > 0 && extents.get(shard).isSealed()) {
                older.add(extents.get(shard).stream());
            }
        });
        waiting.replaceAll((shard, count) -> {
            Extent extent = extents.get(shard);
            return count > 0 && older.contains(extent.stream()) && !extent.isSealed() ? 0L : count;
        });
        double portion = Math.min(1.0, portion(waiting, extents, rowsMost, bytesMost));
        Map<Long, Long> taken = new LinkedHashMap<>();
        waiting.forEach((shard, count) -> taken.put(shard, (long) (count * portion)));
        if (taken.values().stream().allMatch(count -> count == 0)) {
            long most = -1;
            for (Map.Entry<Long, Long> one : waiting.entrySet()) {
                most = most < 0 || one.getValue() > waiting.get(most) ? one.getKey() : most;
            }
            taken.put(most, 1L);
        }
        end.replaceAll((shard, after) -> start.at(shard) + taken.get(shard));
        return new Position(end);
    }

    /** Which part of what waits the limits allow; 1 or more for all of it. */
    private static double portion(
            Map<Long, Long> waiting, Map<Long, Extent> extents, Long rowsMost, Long bytesMost) {
        double least = 1.0;
        if (rowsMost != null) {
            long rows = waiting.values().stream().mapToLong(Long::longValue).sum();
            least = Math.min(least, (double) rowsMost / Math.max(1, rows));
        }
        if (bytesMost != null) {
            long bytes = 0;
            for (Map.Entry<Long, Long> one : waiting.entrySet()) {
                bytes += one.getValue() == 0 ? 0 : one.getValue() * extents.get(one.getKey()).rowBytes();
            }
            least = Math.min(least, (double) bytesMost / Math.max(1, bytes));
        }
        return least;
    }

    /** What came after a bounded run had begun is for the next run: extents that end at the target. */
    public static Map<Long, Extent> capped(Map<Long, Extent> extents, Map<Long, Long> target, Position start) {
        Map<Long, Extent> found = new LinkedHashMap<>();
        extents.forEach((shard, extent) -> {
            if (start.has(shard) || target.containsKey(shard)) {
                long end = Math.min(extent.next(), target.getOrDefault(shard, 0L));
                found.put(shard, extent.upTo(Math.max(start.at(shard), end)));
            }
        });
        return found;
    }

    /**
     * The same offsets divided into tasks: long ranges are split, and short ones share a task. There are at least
     * `tasksLeast` tasks if there are so many offsets, and none has more than `rowsMost` offsets.
     */
    public static List<List<Span>> plan(List<Span> whole, Long tasksLeast, Long rowsMost) {
        long total = whole.stream().mapToLong(Span::count).sum();
        long aim = Math.min(Bounds.TASK_ROWS_AIM, rowsMost == null ? Bounds.TASK_ROWS_AIM : rowsMost);
        if (tasksLeast != null) {
            aim = Math.min(aim, Math.max(1, total / tasksLeast));
        }
        aim = Math.max(aim, -Math.floorDiv(-total, Bounds.TASKS));
        List<Span> pieces = new ArrayList<>();
        for (Span span : whole) {
            long parts = -Math.floorDiv(-span.count(), aim);
            for (long part = 0; part < parts; part++) {
                long one = span.start() + span.count() * part / parts;
                pieces.add(span.between(one, span.start() + span.count() * (part + 1) / parts));
            }
        }
        return bundled(pieces, Math.min(aim, Bounds.TASK_ROWS_LEAST));
    }

    /** Neighbours together as long as they have no more than `rowsMost` offsets. */
    private static List<List<Span>> bundled(List<Span> pieces, long rowsMost) {
        List<List<Span>> bundles = new ArrayList<>();
        long rows = 0;
        for (Span piece : pieces) {
            if (!bundles.isEmpty() && rows + piece.count() <= rowsMost) {
                rows += piece.count();
            } else {
                bundles.add(new ArrayList<>());
                rows = piece.count();
            }
            bundles.get(bundles.size() - 1).add(piece);
        }
        return bundles;
    }
}
