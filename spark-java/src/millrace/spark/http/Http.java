package millrace.spark.http;

import java.net.http.HttpClient;
import java.util.ArrayList;
import java.util.Comparator;
import java.util.List;
import java.util.concurrent.atomic.AtomicLong;
import java.util.function.Predicate;
import java.util.stream.Collectors;
import millrace.spark.common.Bounds;

/**
 * The nodes of a cluster as one place to ask.
 *
 * <p>Nodes are asked in turn, beginning with the one that answered last (`first`), or all at the same time (`every`).
 * A node that cannot be reached or stays silent is passed over. As long as another node is left to ask, a node may
 * stay silent for a short time only, and until it answers again nobody waits for it while others answer. When all are
 * silent, the last one gets the long time. When no node has an answer they are all asked again for a while, because
 * an election or a restart takes a moment.
 */
public final class Http {
    /** Asks one node. Throws NoAnswer where another node may have an answer, anything else where none can. */
    public interface Ask<T> {
        T of(HttpNode node, TimeLimit limit);
    }

    /** Called with the failures of all nodes, and whether this was the last round; throws to end the asking. */
    public interface Conclude {
        void on(List<NoAnswer> failures, boolean isLast);
    }

    private interface AskRound<T> {
        List<T> with(List<NoAnswer> failures);
    }

    public static final Conclude NOTHING = (failures, isLast) -> {};

    /** Answers that did not come, and were got elsewhere or later. */
    public final AtomicLong repeats = new AtomicLong();

    private final Timeouts timeouts;
    private volatile List<HttpNode> nodes;

    public Http(List<Address> addresses, String password, Timeouts timeouts, String caFile) {
        this.timeouts = timeouts;
        HttpClient client = Clients.client(Math.min(timeouts.connectS(), timeouts.switchS()), caFile);
        nodes = addresses.stream().map(one -> new HttpNode(one, password, client)).toList();
    }

    public int count() {
        return nodes.size();
    }

    /** The address of the node that is asked first. */
    public String firstUrl() {
        return nodes.get(0).url;
    }

    /** Ask the node at this address first from now on, if it is one of these. */
    public void prefer(String url) {
        putFirst(nodes.stream().filter(node -> node.url.equals(url)).toList());
    }

    /** The first answer that a node has; that node is asked first from now on. `what` names what was asked for. */
    public <T> T first(Ask<T> ask, String what, Conclude conclude) {
        return patiently(failures -> askInTurn(ask, failures), what, conclude).get(0);
    }

    /**
     * The answers of all nodes that have one, asked at the same time: at least one. Returns as soon as the answers
     * suffice. A node that stayed silent the last time is waited for only if no other node answers.
     */
    public <T> List<T> every(Ask<T> ask, String what, Conclude conclude, Predicate<List<T>> suffices) {
        return patiently(failures -> askAll(ask, failures, suffices), what, conclude);
    }

    private <T> List<T> patiently(AskRound<T> round, String what, Conclude conclude) {
        long untilNs = System.nanoTime() + (long) (timeouts.patienceS() * 1e9);
        double pauseS = Bounds.PAUSE_S_LEAST;
        while (true) {
            List<NoAnswer> failures = new ArrayList<>();
            List<T> answers = round.with(failures);
            repeats.addAndGet(failures.size());
            if (!answers.isEmpty()) {
                return answers;
            }
            boolean isLast = System.nanoTime() + (long) (pauseS * 1e9) - untilNs > 0;
            conclude.on(failures, isLast);
            if (isLast) {
                String reasons = failures.stream()
                        .map(one -> one.url + ": " + one.getMessage())
                        .collect(Collectors.joining("; "));
                throw new NobodyAnswers("no node has an answer for " + what + ": " + reasons);
            }
            Threads.sleep(pauseS);
            pauseS = Math.min(2 * pauseS, Bounds.PAUSE_S_MOST);
        }
    }

    private <T> List<T> askInTurn(Ask<T> ask, List<NoAnswer> failures) {
        List<HttpNode> inTurn = new ArrayList<>(nodes);
        inTurn.sort(Comparator.comparing(node -> SilentNodes.isSuspect(node.url)));
        for (int at = 0; at < inTurn.size(); at++) {
            boolean isLast = at == inTurn.size() - 1 && failures.stream().allMatch(one -> one.isSilent);
            HttpNode node = inTurn.get(at);
            try {
                T answer = ask.of(node, isLast ? timeouts.limit().ofLast() : timeouts.limit());
                putFirst(List.of(node));
                return List.of(answer);
            } catch (NoAnswer failure) {
                failure.url = node.url;
                failures.add(failure);
            }
        }
        return List.of();
    }

    private <T> List<T> askAll(Ask<T> ask, List<NoAnswer> failures, Predicate<List<T>> suffices) {
        List<HttpNode> all = nodes;
        List<HttpNode> suspects = new ArrayList<>(
                all.stream().filter(node -> SilentNodes.isSuspect(node.url)).toList());
        List<HttpNode> trusted = all.stream().filter(node -> !suspects.contains(node)).toList();
        Round<T> round = new Round<>(ask, timeouts.limit());
        if (!trusted.isEmpty()) {
            round.begin(trusted, suspects.isEmpty() && trusted.size() == 1);
            // Those whose time is over may show that they answer again; nobody waits for them.
            List<HttpNode> due =
                    suspects.stream().filter(node -> !SilentNodes.isSilent(node.url)).toList();
            round.begin(due, false);
            suspects.removeAll(due);
            round.await(trusted, suffices);
        }
        if (round.answers.isEmpty()) {
            round.begin(suspects, true);
            round.await(all, answers -> true);
        }
        failures.addAll(round.failures);
        putFirst(List.copyOf(round.answers.keySet()));
        return List.copyOf(round.answers.values());
    }

    private synchronized void putFirst(List<HttpNode> chosen) {
        if (!chosen.equals(nodes.subList(0, chosen.size()))) {
            List<HttpNode> changed = new ArrayList<>(chosen);
            nodes.stream().filter(node -> !chosen.contains(node)).forEach(changed::add);
            nodes = List.copyOf(changed);
        }
    }
}
