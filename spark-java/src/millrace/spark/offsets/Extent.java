package millrace.spark.offsets;

/**
 * What a shard holds: offsets from `first` to before `next`, in about so many bytes. Sealed: the stream was given
 * other shards, and these offsets are older than all in its open shards.
 */
public record Extent(long first, long next, long sizeBytes, String stream, boolean isSealed) {
    /** The mean size of a message on disk, at least 1. */
    public long rowBytes() {
        return Math.max(1, sizeBytes / Math.max(1, next - first));
    }

    Extent upTo(long end) {
        return new Extent(first, end, sizeBytes, stream, isSealed);
    }
}
