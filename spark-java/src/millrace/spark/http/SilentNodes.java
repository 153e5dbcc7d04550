package millrace.spark.http;

import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import millrace.spark.common.Bounds;

/**
 * Which nodes stayed silent when they were asked last, for the whole process. Each silence in a row doubles the time
 * for which the node is not asked at all; after it the node is asked again, but not waited for, until it answers.
 */
final class SilentNodes {
    private record Avoided(long untilNs, double pauseS) {}

    private static final Map<String, Avoided> AVOIDED = new ConcurrentHashMap<>();

    private SilentNodes() {}

    /** Whether the node has not answered since it stayed silent. */
    static boolean isSuspect(String url) {
        return AVOIDED.containsKey(url);
    }

    /** Whether the node is not to be asked yet. */
    static boolean isSilent(String url) {
        Avoided found = AVOIDED.get(url);
        return found != null && System.nanoTime() - found.untilNs < 0;
    }

    static void stayedSilent(String url) {
        AVOIDED.compute(url, (key, before) -> {
            double beforeS = before == null ? 0 : before.pauseS;
            double pauseS = Math.min(Bounds.SILENT_S_MOST, Math.max(Bounds.SILENT_S_LEAST, 2 * beforeS));
            return new Avoided(System.nanoTime() + (long) (pauseS * 1e9), pauseS);
        });
    }

    static void answered(String url) {
        AVOIDED.remove(url);
    }
}
