package millrace.spark.source;

import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.metric.CustomSumMetric;
import org.apache.spark.sql.connector.metric.CustomTaskMetric;

/** What Spark's pages show of the tasks that read. */
public final class Figures {
    private static final String BYTES = "bytesRead";
    private static final String REPEATS = "requestsRepeated";

    private Figures() {}

    static CustomMetric[] supported() {
        return new CustomMetric[] {new BytesRead(), new RequestsRepeated()};
    }

    static CustomTaskMetric[] values(long bytes, long repeats) {
        return new CustomTaskMetric[] {new Value(BYTES, bytes), new Value(REPEATS, repeats)};
    }

    private record Value(String name, long value) implements CustomTaskMetric {}

    /** Spark makes these by name. */
    public static final class BytesRead extends CustomSumMetric {
        @Override
        public String name() {
            return BYTES;
        }

        @Override
        public String description() {
            return "bytes of blocks that nodes sent";
        }
    }

    /** Of the process, while the task ran. */
    public static final class RequestsRepeated extends CustomSumMetric {
        @Override
        public String name() {
            return REPEATS;
        }

        @Override
        public String description() {
            return "answers that did not come, and were got elsewhere or later";
        }
    }
}
