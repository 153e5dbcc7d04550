package millrace.spark.source;

import millrace.spark.common.LocalError;
import millrace.spark.common.Words;

/** Retention has removed what was asked for, or the shard is gone (`earliest` is null). */
public final class Expired extends LocalError {
    private static final long serialVersionUID = 1L;

    final Long earliest;

    Expired(String stream, long shard, long asked, Long earliest) {
        super("stream " + Words.quoted(stream) + ", shard " + shard + ": offset " + asked + " was asked for, but "
                + (earliest == null
                        ? "the shard is no longer there"
                        : "the earliest offset that is left is " + earliest)
                + "; with failOnDataLoss=false the query goes on without what is gone");
        this.earliest = earliest;
    }
}
