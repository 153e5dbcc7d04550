package millrace.spark.common;

/** Something here, or in what we were asked, is wrong; the text says what. */
public class LocalError extends RuntimeException {
    private static final long serialVersionUID = 1L;

    public LocalError(String reason) {
        super(reason);
    }

    public LocalError(String reason, Throwable cause) {
        super(reason, cause);
    }
}
