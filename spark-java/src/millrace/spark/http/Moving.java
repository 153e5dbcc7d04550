package millrace.spark.http;

/** One request on its way: when bytes last came or went, and whether somebody still waits for it. */
final class Moving {
    private long atNs = System.nanoTime();
    private boolean isGivenUp;

    synchronized void now() {
        atNs = System.nanoTime();
    }

    /** How long it may still stay silent. */
    synchronized long leftNs(double silenceS) {
        return atNs + (long) (silenceS * 1e9) - System.nanoTime();
    }

    /** From now on nothing is put into its room, which another answer gets next. */
    synchronized void giveUp() {
        isGivenUp = true;
    }

    /** Take what came, unless nobody waits for it any more. */
    synchronized void take(Runnable work) {
        atNs = System.nanoTime();
        if (!isGivenUp) {
            work.run();
        }
    }
}
