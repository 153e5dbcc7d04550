package millrace.spark.http;

import java.io.InterruptedIOException;
import java.io.UncheckedIOException;
import java.util.concurrent.ExecutorService;
import java.util.concurrent.Executors;

/** Threads that wait for nodes. They keep nobody from ending. */
public final class Threads {
    public static final ExecutorService POOL = Executors.newCachedThreadPool(work -> {
        Thread thread = new Thread(work, "millrace-spark");
        thread.setDaemon(true);
        return thread;
    });

    private Threads() {}

    /** What Spark takes for the end of a query or of a task that it has stopped itself. */
    static UncheckedIOException interrupted() {
        Thread.currentThread().interrupt();
        return new UncheckedIOException(new InterruptedIOException("stopped while waiting for a node"));
    }

    static void sleep(double seconds) {
        try {
            Thread.sleep((long) (seconds * 1000));
        } catch (InterruptedException error) {
            throw interrupted();
        }
    }
}
