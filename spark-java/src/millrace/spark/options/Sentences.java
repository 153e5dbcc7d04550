package millrace.spark.options;

import java.util.Map;
import millrace.spark.common.Environment;

/** What is said in more than one place, as the Python source says it. */
public final class Sentences {
    public static final String DEFAULT_URL = "http://127.0.0.1:18831";
    static final String NO_SECRET = "a secret in an option is written into the plan: set " + Environment.PASSWORD + " or "
            + Environment.TOKEN + " where the executors run, or name a file there in passwordFile or tokenFile";
    static final String NO_URL = "name the nodes to write to: give the option url, or set the environment variable "
            + Environment.URL + " (in a Spark session: spark.executorEnv." + Environment.URL
            + "); a table of Spark's catalog gets no options from Spark";
    static final String NO_OPTIONS =
            "name what to read: give the option stream, subscribe, subscribePattern or assign; a table of Spark's "
                    + "catalog gets no options from Spark, CREATE TEMPORARY VIEW ... USING millrace OPTIONS (...) does";
    static final String NO_TABLE = "Spark does not hand the options of a table in its catalog to this source: use CREATE "
            + "TEMPORARY VIEW ... USING millrace OPTIONS (...)";
    public static final String UPDATE_MODE =
            "Spark offers the output mode update to no Python data source, and complete would write all rows again "
                    + "with every batch: use foreachBatch and write each batch with the options writer and batch";
    static final Map<String, String> NOT_HERE = Map.of(
            "password", NO_SECRET,
            "token", NO_SECRET,
            "includeheaders", "the columns content_type and properties are always there",
            "startingoffsetsbytimestampstrategy", "a time after the last message means the end of the shard",
            "traceendpoint", "traces are told by the source in Python only",
            "traceonein", "traces are told by the source in Python only");

    private Sentences() {}
}
