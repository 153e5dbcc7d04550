package millrace.spark.blocks;

import java.util.function.Predicate;

/**
 * Which rows of a shard are wanted: offsets from `start` to before `end`, and times with both ends in. `takes` is
 * asked once for each topic of a block; null takes every topic.
 */
public record Choice(long start, long end, Predicate<String> takes, long fromUs, long untilUs) {
    public boolean isTimed() {
        return fromUs > Long.MIN_VALUE || untilUs < Long.MAX_VALUE;
    }
}
