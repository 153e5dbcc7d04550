package millrace.spark.source;

import java.io.IOException;
import java.io.InterruptedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.function.Predicate;
import millrace.spark.blocks.Choice;
import millrace.spark.blocks.Part;
import millrace.spark.blocks.Vectors;
import millrace.spark.blocks.Walk;
import millrace.spark.common.Bounds;
import millrace.spark.common.Topics;
import millrace.spark.offsets.Span;
import millrace.spark.options.Options;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;
import org.apache.spark.sql.connector.read.PartitionReader;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.vectorized.ColumnarBatch;

/** The rows of a task in the executor: a batch is the chosen rows of one block. */
final class BlockReader implements PartitionReader<ColumnarBatch> {
    private final ClusterReader cluster;
    private final Conditions conditions;
    private final Predicate<String> takes;
    private final Fetcher fetcher;
    private final Part part = new Part();
    private final Vectors vectors;
    private final long repeatsBefore;
    private Walk walk;
    private long bytes;

    BlockReader(Options given, StructType schema, Conditions conditions, Task task) {
        this.conditions = conditions;
        cluster = ClusterReader.of(given.access);
        repeatsBefore = cluster.http.repeats.get();
        cluster.http.prefer(task.node());
        takes = takes(given.topics, conditions);
        vectors = new Vectors(schema, part);
        fetcher = new Fetcher(cluster, given, task.spans(), new Rooms(task.rows() <= Bounds.TASK_ROWS_LEAST));
    }

    @Override
    public boolean next() throws IOException {
        while (walk == null || !walk.next(part)) {
            Fetcher.Fetched found;
            try {
                found = fetcher.next();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
                throw new InterruptedIOException("the task was stopped");
            }
            if (found == null) {
                return false;
            }
            Span span = found.span();
            bytes += found.length();
            Choice choice = new Choice(span.start(), span.end(), takes, conditions.fromUs, conditions.untilUs);
            walk = new Walk(found.data(), found.length(), choice);
        }
        return true;
    }

    @Override
    public ColumnarBatch get() {
        return vectors.batch();
    }

    @Override
    public CustomTaskMetric[] currentMetricsValues() {
        return Figures.values(bytes, cluster.http.repeats.get() - repeatsBefore);
    }

    @Override
    public void close() {
        fetcher.close();
        part.close();
    }

    /** Whether a topic of a dictionary is wanted; null where every topic is. */
    private static Predicate<String> takes(List<String> filters, Conditions conditions) {
        if (filters.isEmpty() && !conditions.hasTopics()) {
            return null;
        }
        List<String[]> levels = new ArrayList<>();
        filters.forEach(filter -> levels.add(Topics.levels(filter)));
        Map<String, Boolean> known = new HashMap<>();
        return topic -> {
            if (known.size() >= Bounds.TOPICS_KEPT) {
                known.clear();
            }
            return known.computeIfAbsent(topic, text -> {
                String[] parts = Topics.levels(text);
                boolean isIn = levels.isEmpty() || levels.stream().anyMatch(one -> Topics.matches(one, parts));
                return isIn && conditions.takes(text);
            });
        };
    }
}
