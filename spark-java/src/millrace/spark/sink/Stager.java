package millrace.spark.sink;

import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.UUID;
import java.util.concurrent.CompletableFuture;
import java.util.concurrent.ExecutionException;
import millrace.spark.common.Bounds;
import millrace.spark.http.Threads;

/** One attempt: numbers its blocks, and sends them while the next ones are made. */
final class Stager {
    final String attempt = "a-" + UUID.randomUUID();
    /** At each shard how many. */
    final HashMap<Long, Integer> blocks = new HashMap<>();

    long rows;
    private final ClusterWriter cluster;
    private final String writer;
    private final long batch;
    private Map<String, List<byte[]>> pieces = new LinkedHashMap<>();
    private long size;
    private int count;
    private CompletableFuture<Void> sending;

    Stager(ClusterWriter cluster, String writer, long batch) {
        this.cluster = cluster;
        this.writer = writer;
        this.batch = batch;
    }

    void add(Section section) {
        Routes.Route route = section.route;
        int number = blocks.merge(route.shard(), 1, Integer::sum) - 1;
        rows += section.rows();
        pieces.computeIfAbsent(route.stream(), stream -> new ArrayList<>()).add(section.numbered(number));
        size += section.sizeBytes();
        count++;
        if (size >= Bounds.REQUEST_BYTES || count >= Bounds.REQUEST_SECTIONS) {
            send();
        }
    }

    /** Hand over what has gathered; the blocks of an attempt arrive in order, so one request at a time. */
    void send() {
        await();
        Map<String, List<byte[]>> given = pieces;
        pieces = new LinkedHashMap<>();
        size = 0;
        count = 0;
        if (!given.isEmpty()) {
            sending = CompletableFuture.runAsync(
                    () -> given.forEach((stream, parts) -> cluster.stage(stream, writer, batch, attempt, parts)),
                    Threads.POOL);
        }
    }

    void await() {
        CompletableFuture<Void> current = sending;
        sending = null;
        if (current == null) {
            return;
        }
        try {
            current.get();
        } catch (InterruptedException error) {
            Thread.currentThread().interrupt();
            throw new UncheckedIOException(new InterruptedIOException("the task was stopped"));
        } catch (ExecutionException error) {
            throw error.getCause() instanceof RuntimeException own ? own : new IllegalStateException(error.getCause());
        }
    }
}
