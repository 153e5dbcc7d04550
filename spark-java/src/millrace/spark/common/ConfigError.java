package millrace.spark.common;

/** An option or a schema is wrong; the text names it and says what would be right. */
public final class ConfigError extends LocalError {
    private static final long serialVersionUID = 1L;

    public ConfigError(String reason) {
        super(reason);
    }
}
