package millrace.spark.sink;

import java.util.HashMap;
import org.apache.spark.sql.connector.write.WriterCommitMessage;

/**
 * What one task staged, carried to the driver.
 *
 * @param blocks at each shard how many
 * @param node the address of the node that took them, to be asked first
 */
record Staged(String writer, long batch, String attempt, HashMap<Long, Integer> blocks, long rows, String node)
        implements WriterCommitMessage {}
