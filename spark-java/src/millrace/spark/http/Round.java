package millrace.spark.http;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.BlockingQueue;
import java.util.concurrent.LinkedBlockingQueue;
import java.util.function.Predicate;

/**
 * Nodes that are asked at the same time, each in a thread of its own. A thread that nobody waits for any more ends by
 * itself, within the time limit of its request.
 */
final class Round<T> {
    private record Done<T>(HttpNode node, T answer, RuntimeException error) {}

    final Map<HttpNode, T> answers = new LinkedHashMap<>();
    final List<NoAnswer> failures = new ArrayList<>();

    private final Http.Ask<T> ask;
    private final TimeLimit limit;
    private final BlockingQueue<Done<T>> done = new LinkedBlockingQueue<>();
    private final List<HttpNode> underWay = new ArrayList<>();

    Round(Http.Ask<T> ask, TimeLimit limit) {
        this.ask = ask;
        this.limit = limit;
    }

    void begin(List<HttpNode> nodes, boolean isLast) {
        TimeLimit own = isLast ? limit.ofLast() : limit;
        for (HttpNode node : nodes) {
            underWay.add(node);
            if (nodes.size() == 1 && isLast) {
                run(node, own);
            } else {
                Threads.POOL.execute(() -> run(node, own));
            }
        }
    }

    /** Until all of these have answered or failed, or the answers suffice. */
    void await(List<HttpNode> nodes, Predicate<List<T>> suffices) {
        while (nodes.stream().anyMatch(underWay::contains)) {
            Done<T> one;
            try {
                one = done.take();
            } catch (InterruptedException error) {
                throw Threads.interrupted();
            }
            underWay.remove(one.node);
            if (one.error instanceof NoAnswer failure) {
                failure.url = one.node.url;
                failures.add(failure);
            } else if (one.error != null) {
                throw one.error;
            } else {
                answers.put(one.node, one.answer);
            }
            if (!answers.isEmpty() && suffices.test(List.copyOf(answers.values()))) {
                return;
            }
        }
    }

    private void run(HttpNode node, TimeLimit own) {
        try {
            done.add(new Done<>(node, ask.of(node, own), null));
        } catch (RuntimeException error) {
            done.add(new Done<>(node, null, error));
        }
    }
}
