package millrace.spark.http;

import millrace.spark.common.LocalError;

/** One node has no answer to a request; another node may have one, or the same node later. */
public class NoAnswer extends LocalError {
    private static final long serialVersionUID = 1L;

    /** The node did not answer in time. */
    public final boolean isSilent;
    /** The node, filled in by the client that asked it. */
    public String url = "";

    public NoAnswer(String reason) {
        this(reason, false);
    }

    public NoAnswer(String reason, boolean isSilent) {
        super(reason);
        this.isSilent = isSilent;
    }
}
