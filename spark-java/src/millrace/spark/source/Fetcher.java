package millrace.spark.source;

import java.util.ArrayDeque;
import java.util.List;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import millrace.spark.common.Words;
import millrace.spark.http.Threads;
import millrace.spark.offsets.Span;
import millrace.spark.options.Options;
import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/** The blocks of the spans of a task in order. One answer is on its way while the one before is read. */
final class Fetcher implements AutoCloseable {
    /** What was read, and the span that begins with its rows. */
    record Fetched(Span span, byte[] data, int length, long next) {}

    private static final Logger LOG = LoggerFactory.getLogger("millrace.spark");
    private static final byte[] NOTHING = new byte[0];

    private final ClusterReader cluster;
    private final boolean isLossFatal;
    private final ArrayDeque<Span> left;
    private final Rooms rooms;
    private CompletableFuture<Fetched> coming;

    Fetcher(ClusterReader cluster, Options given, List<Span> spans, Rooms rooms) {
        this.cluster = cluster;
        this.isLossFatal = given.isLossFatal;
        this.left = new ArrayDeque<>(spans);
        this.rooms = rooms;
        begin();
    }

    /** The next answer; null where there is none left. */
    Fetched next() throws InterruptedException {
        if (coming == null) {
            return null;
        }
        Fetched found;
        try {
            found = coming.get();
        } catch (ExecutionException error) {
            throw error.getCause() instanceof RuntimeException own ? own : new IllegalStateException(error.getCause());
        }
        coming = null;
        if (found.next < found.span.end()) {
            left.addFirst(found.span.from(found.next));
        }
        begin();
        return found;
    }

    private void begin() {
        if (!left.isEmpty()) {
            Span span = left.poll();
            byte[] room = rooms.next();
            coming = CompletableFuture.supplyAsync(() -> fetch(span, room), Threads.POOL);
        }
    }

    /**
     * Passes over what is gone if the query may: a block may still hold messages below the earliest offset, and they
     * are gone all the same.
     */
    private Fetched fetch(Span span, byte[] room) {
        long at = span.start();
        while (at < span.end()) {
            try {
                ClusterReader.Blocks found = cluster.blocks(span.stream(), span.shard(), at, span.end(), room);
                return new Fetched(span.from(at), found.data(), found.length(), found.next());
            } catch (Expired error) {
                if (isLossFatal) {
                    throw error;
                }
                long after = error.earliest == null
                        ? span.end()
                        : Math.min(span.end(), Math.max(at + 1, error.earliest));
                LOG.warn(
                        "stream {}, shard {}: {} offsets from {} on are gone and were skipped",
                        Words.quoted(span.stream()),
                        span.shard(),
                        after - at,
                        at);
                at = after;
            }
        }
        return new Fetched(span.from(at), NOTHING, 0, at);
    }

    /** An answer that is still on its way keeps its room, which then belongs to nobody else. */
    @Override
    public void close() {
        if (coming == null || coming.isDone()) {
            rooms.giveBack();
        }
    }
}
