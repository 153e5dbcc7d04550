package millrace.spark.source;

import java.util.Collection;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Optional;
import java.util.TreeSet;
import millrace.spark.common.Words;
import millrace.spark.http.NobodyAnswers;
import millrace.spark.offsets.Extent;
import millrace.spark.offsets.Place;
import millrace.spark.offsets.Planning;
import millrace.spark.offsets.Position;
import millrace.spark.offsets.Start;
import millrace.spark.options.Options;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.connector.read.streaming.Offset;
import org.apache.spark.sql.connector.read.streaming.ReadAllAvailable;
import org.apache.spark.sql.connector.read.streaming.ReadLimit;
import org.apache.spark.sql.connector.read.streaming.ReportsSourceMetrics;
import org.apache.spark.sql.connector.read.streaming.SupportsTriggerAvailableNow;
import org.apache.spark.sql.types.StructType;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * Plans the micro-batches of one query. Everything that Spark asks for a micro-batch is answered from one question to
 * the nodes. The offsets of a batch are fixed when it is planned, and blocks below the end of a log never change: so a
 * task that runs again reads the same rows, and so does a batch that is repeated after a restart from a checkpoint.
 */
final class MillraceStream implements MicroBatchStream, SupportsTriggerAvailableNow, ReportsSourceMetrics {
    private static final Logger LOG = LoggerFactory.getLogger("millrace.spark");

    private final Options given;
    private final StructType schema;
    private final Conditions conditions;
    private final Start begin;
    /** Where a run with Trigger.AvailableNow ends. */
    private Map<Long, Long> target;

    private Map<Long, Extent> latest = new LinkedHashMap<>();
    private final Map<Long, String> streams = new HashMap<>();
    private Map<Long, Long> told;
    private Long batchAtNs;

    MillraceStream(Options given, StructType schema, Conditions conditions) {
        this.given = given;
        this.schema = schema;
        this.conditions = conditions;
        begin = given.streamStart();
    }

    @Override
    public Offset initialOffset() {
        Map<Long, Extent> extents = extents();
        return Shards.position(cluster(), "startingOffsets", begin, extents, Place.EARLIEST);
    }

    @Override
    public Offset deserializeOffset(String json) {
        return Position.parse(json);
    }

    @Override
    public ReadLimit getDefaultReadLimit() {
        if (given.rowsMost != null) {
            return ReadLimit.maxRows(given.rowsMost);
        }
        return given.bytesMost == null ? ReadLimit.allAvailable() : ReadLimit.maxBytes(given.bytesMost);
    }

    @Override
    public Offset latestOffset() {
        throw new UnsupportedOperationException("Spark asks with a limit");
    }

    /**
     * Where the next micro-batch ends. Spark plans one only after it has written down that the one before is done, so
     * everything below `start` is finished.
     */
    @Override
    public Offset latestOffset(Offset start, ReadLimit limit) {
        Position position = of(start);
        tell(position);
        Map<Long, Extent> extents = extents();
        if (target != null) {
            extents = Planning.capped(extents, target, position);
        }
        boolean isAll = limit instanceof ReadAllAvailable;
        // A query has one limit for Spark; where the options give two, both hold.
        Position end = Planning.advance(
                position, extents, isAll ? null : given.rowsMost, isAll ? null : given.bytesMost);
        return isEarly(position, end) ? position : end;
    }

    /** Whether a batch to `end` waits for more offsets (`minOffsetsPerTrigger`). */
    private boolean isEarly(Position position, Position end) {
        long waiting = position.until(end, Map.of()).stream().mapToLong(span -> span.count()).sum();
        if (waiting == 0 || target != null) {
            return false;
        }
        long wanted = given.rowsLeast == null ? 0 : given.rowsLeast;
        wanted = given.rowsMost == null ? wanted : Math.min(wanted, given.rowsMost);
        long nowNs = System.nanoTime();
        if (waiting < wanted && batchAtNs != null && nowNs - batchAtNs < (long) (given.delayS * 1e9)) {
            return true;
        }
        batchAtNs = nowNs;
        return false;
    }

    @Override
    public void prepareForTriggerAvailableNow() {
        target = ends(extents());
    }

    /** The ends of the logs as they were when the micro-batch was planned. */
    @Override
    public Offset reportLatestOffset() {
        return new Position(ends(latest.isEmpty() ? extents() : latest));
    }

    @Override
    public InputPartition[] planInputPartitions(Offset start, Offset end) {
        Position first = of(start);
        Position after = of(end);
        boolean isOne = given.streams.size() == 1;
        if (!isOne && !streams.keySet().containsAll(after.offsets().keySet())) {
            // A batch that is repeated after a restart is planned before anything else.
            extents();
        }
        Map<Long, String> known = new HashMap<>(streams);
        if (isOne) {
            after.offsets().keySet().forEach(shard -> known.put(shard, given.streams.get(0)));
        }
        return Shards.tasks(conditions.narrowed(first.until(after, known)), given, cluster().http.firstUrl());
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(given, schema, conditions);
    }

    /** Spark has written down that it is done with everything below `end`. */
    @Override
    public void commit(Offset end) {
        tell(of(end));
    }

    @Override
    public void stop() {
        // Connections belong to the process.
    }

    /** How far what was read is behind the ends of the logs, in `query.lastProgress`. */
    @Override
    public Map<String, String> metrics(Optional<Offset> consumed) {
        Map<String, String> found = new LinkedHashMap<>();
        if (consumed.isEmpty() || latest.isEmpty()) {
            return found;
        }
        Position position = of(consumed.get());
        long lag = 0;
        long most = 0;
        long bytes = 0;
        for (Map.Entry<Long, Extent> one : latest.entrySet()) {
            Extent extent = one.getValue();
            long behind = Math.max(0, extent.next() - Math.max(position.at(one.getKey()), extent.first()));
            lag += behind;
            bytes += behind * extent.rowBytes();
            most = Math.max(most, behind);
        }
        found.put("offsetsBehindLatest", String.valueOf(lag));
        found.put("maxOffsetsBehindLatest", String.valueOf(most));
        found.put("bytesBehindLatest", String.valueOf(bytes));
        found.put("shards", String.valueOf(latest.size()));
        found.put("requestsRepeated", String.valueOf(cluster().http.repeats.get()));
        return found;
    }

    /**
     * The group shows what is finished and lets it go. A cluster that does not answer just now holds the log a little
     * longer, which costs the query nothing; a refusal ends it.
     */
    private void tell(Position position) {
        if (given.group == null || position.offsets().equals(told)) {
            return;
        }
        try {
            if (given.pattern != null && streams.isEmpty()) {
                extents();
            }
            Collection<String> named = given.pattern == null ? given.streams : new TreeSet<>(streams.values());
            cluster().advance(given.group, given.topics, named, position);
            told = position.offsets();
        } catch (NobodyAnswers error) {
            LOG.warn(
                    "the group {} does not show the progress of this query: {}",
                    Words.quoted(given.group),
                    error.getMessage());
        }
    }

    private Map<Long, Extent> extents() {
        latest = Shards.extents(cluster(), given);
        streams.putAll(Shards.streams(latest));
        return latest;
    }

    private ClusterReader cluster() {
        return ClusterReader.of(given.access);
    }

    private static Map<Long, Long> ends(Map<Long, Extent> extents) {
        Map<Long, Long> found = new LinkedHashMap<>();
        extents.forEach((shard, extent) -> found.put(shard, extent.next()));
        return found;
    }

    /** Spark gives back what a checkpoint holds as a text of its own. */
    private static Position of(Offset offset) {
        return offset instanceof Position own ? own : Position.parse(offset.json());
    }
}
