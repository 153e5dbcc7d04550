package millrace.spark.sink;

import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.Map;
import java.util.Set;
import java.util.TreeSet;
import millrace.spark.common.Bounds;
import millrace.spark.common.LocalError;
import millrace.spark.options.Access;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** What the driver decides: the attempts that Spark counts become visible, and no others [rules 27, 28, 40]. */
final class Decisions {
    record Batch(String writer, long number) {}

    private static final Logger LOG = LoggerFactory.getLogger("millrace.spark");

    private Decisions() {}

    /** Decide the batch: the attempts of these messages, and no others. */
    static void commit(Access access, WriterCommitMessage[] messages, long batch) {
        if (messages.length == 0) {
            return;
        }
        Map<String, Map<Long, Integer>> attempts = new LinkedHashMap<>();
        String writer = null;
        String node = "";
        for (WriterCommitMessage message : messages) {
            if (!(message instanceof Staged one)
                    || one.batch() != batch
                    || (writer != null && !one.writer().equals(writer))) {
                throw new LocalError(
                        "the messages of batch " + batch + " do not belong together; nothing was committed");
            }
            writer = one.writer();
            if (!one.blocks().isEmpty()) {
                attempts.put(one.attempt(), one.blocks());
                node = node.isEmpty() ? one.node() : node;
            }
        }
        ClusterWriter cluster = new ClusterWriter(access);
        cluster.http.prefer(node);
        // The batch is decided by the first: asking again changes nothing and only waits.
        if (!cluster.commit(writer, batch, attempts) && !cluster.commit(writer, batch, attempts)) {
            LOG.warn("batch {} is decided and will be visible; the nodes are still at it", batch);
        }
    }

    /** Give up what the tasks staged. */
    static void abort(Access access, WriterCommitMessage[] messages) {
        Map<Batch, Set<String>> wanted = new HashMap<>();
        for (WriterCommitMessage message : messages) {
            if (message instanceof Staged one && !one.blocks().isEmpty()) {
                wanted.computeIfAbsent(new Batch(one.writer(), one.batch()), key -> new TreeSet<>())
                        .add(one.attempt());
            }
        }
        giveUp(access, wanted);
    }

    /**
     * Decide the only batch of a writer without winners. Tasks that were killed have told nobody what they staged, and
     * may still be at it: so it is given up with its batch, not attempt by attempt. Where the batch was decided before,
     * this changes nothing.
     */
    static void voidBatch(Access access, String writer) {
        try {
            new ClusterWriter(access, Bounds.GIVE_UP_PATIENCE_S).commit(writer, 0, Map.of());
        } catch (LocalError error) {
            LOG.warn("what was staged stays for a day: {}", error.getMessage());
        }
    }

    /** What cannot be given up now goes with the next batch of the writer, or after a day. */
    static void giveUp(Access access, Map<Batch, Set<String>> wanted) {
        try {
            for (Map.Entry<Batch, Set<String>> one : wanted.entrySet()) {
                new ClusterWriter(access, Bounds.GIVE_UP_PATIENCE_S)
                        .abort(one.getKey().writer, one.getKey().number, one.getValue());
            }
        } catch (LocalError error) {
            LOG.warn("what was staged stays for now: {}", error.getMessage());
        }
    }
}
