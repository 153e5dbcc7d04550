package millrace.spark.source;

import java.util.ArrayList;
import millrace.spark.offsets.Span;
import org.apache.spark.sql.connector.read.InputPartition;

/** What one task reads, one span after another. `node`: the address of a node that answers, to be asked first. */
record Task(ArrayList<Span> spans, String node) implements InputPartition {
    long rows() {
        return spans.stream().mapToLong(Span::count).sum();
    }
}
