package millrace.spark.http;

/** How long a node may stay silent, before its answer and within it; `onceS` is that of the last one that is left. */
public record TimeLimit(double silenceS, double onceS) {
    public TimeLimit ofLast() {
        return new TimeLimit(onceS, onceS);
    }
}
