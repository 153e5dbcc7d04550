package millrace.spark.common;

import org.apache.spark.SparkEnv;

/** Variables of the process, and those that the session sets for executors: in a local session they are the same. */
public final class Environment {
    public static final String PASSWORD = "MILLRACE_PASSWORD";
    public static final String TOKEN = "MILLRACE_TOKEN";
    public static final String URL = "MILLRACE_URL";
    public static final String CA_FILE = "MILLRACE_CA_FILE";
    /** Which run of a pipeline of the cluster a driver is: the cluster takes decisions of the newest alone. */
    public static final String RUN = "MILLRACE_PIPELINE_RUN";

    private Environment() {}

    /** Null where it is not set. */
    public static String get(String name) {
        SparkEnv spark = SparkEnv.get();
        String own = System.getenv(name);
        return spark == null ? own : spark.conf().get("spark.executorEnv." + name, own);
    }
}
