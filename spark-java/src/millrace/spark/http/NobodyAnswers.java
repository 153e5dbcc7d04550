package millrace.spark.http;

import millrace.spark.common.LocalError;

/** No node had an answer for as long as the client was told to ask. */
public final class NobodyAnswers extends LocalError {
    private static final long serialVersionUID = 1L;

    public NobodyAnswers(String reason) {
        super(reason);
    }
}
