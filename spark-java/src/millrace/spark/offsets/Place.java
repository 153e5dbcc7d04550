package millrace.spark.offsets;

import java.io.Serializable;

/** Where to begin or to end in one shard: an end of its log, an offset, or a time in microseconds since 1970. */
public record Place(Kind kind, long value) implements Serializable {
    public enum Kind {
        EARLIEST,
        LATEST,
        OFFSET,
        TIME
    }

    public static final Place EARLIEST = new Place(Kind.EARLIEST, 0);
    public static final Place LATEST = new Place(Kind.LATEST, 0);

    public static Place offset(long offset) {
        return new Place(Kind.OFFSET, offset);
    }

    public static Place time(long timeUs) {
        return new Place(Kind.TIME, timeUs);
    }
}
