package millrace.spark;

import java.util.Map;
import millrace.spark.sink.MillraceWrite;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;
import org.apache.spark.sql.types.StructType;

/** For tests: the sink, and a driver that ends by kill -9 at a place that the environment names. */
public final class Dying extends MillraceProvider {
    private static final String PLACE = System.getenv("DIE");

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new DyingTable(schema, properties);
    }

    private static void killAt(String place, long batch) {
        if (batch == 1 && place.equals(PLACE)) {
            ProcessHandle.of(Long.parseLong(System.getenv("DRIVER_PID"))).ifPresent(ProcessHandle::destroyForcibly);
            Runtime.getRuntime().halt(137);
        }
    }

    private static final class DyingTable extends MillraceTable {
        private final Map<String, String> properties;

        DyingTable(StructType schema, Map<String, String> properties) {
            super(schema, properties);
            this.properties = properties;
        }

        @Override
        public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
            return new MillraceWrite(info, properties) {
                @Override
                public StreamingWrite toStreaming() {
                    return new DyingSink(super.toStreaming());
                }
            };
        }
    }

    private record DyingSink(StreamingWrite real) implements StreamingWrite {
        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo info) {
            return new DyingFactory(real.createStreamingWriterFactory(info));
        }

        @Override
        public void commit(long batch, WriterCommitMessage[] messages) {
            killAt("before commit", batch);
            real.commit(batch, messages);
            killAt("after commit", batch);
        }

        @Override
        public void abort(long batch, WriterCommitMessage[] messages) {
            real.abort(batch, messages);
        }
    }

    private record DyingFactory(StreamingDataWriterFactory real) implements StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long batch) {
            DataWriter<InternalRow> writer = real.createWriter(partition, task, batch);
            return batch == 1 && "worker".equals(PLACE) ? new DyingWriter(writer) : writer;
        }
    }

    /** In a local session the executor is the driver: so the task fails, and tells nobody what it staged. */
    private record DyingWriter(DataWriter<InternalRow> real) implements DataWriter<InternalRow> {
        @Override
        public void write(InternalRow row) throws java.io.IOException {
            real.write(row);
        }

        @Override
        public WriterCommitMessage commit() throws java.io.IOException {
            real.commit();
            throw new IllegalStateException("the task dies after it staged");
        }

        @Override
        public void abort() {
            // The dead do nothing.
        }

        @Override
        public void close() throws java.io.IOException {
            real.close();
        }
    }
}
