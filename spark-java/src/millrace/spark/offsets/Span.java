package millrace.spark.offsets;

import java.io.Serializable;

/** Offsets of one shard: `start` is in, `end` is not. */
public record Span(long shard, long start, long end, String stream) implements Serializable {
    public long count() {
        return end - start;
    }

    public Span from(long other) {
        return new Span(shard, other, end, stream);
    }

    Span between(long one, long two) {
        return new Span(shard, one, two, stream);
    }
}
