package millrace.spark.sink;

import java.util.Map;
import java.util.UUID;
import millrace.spark.common.ConfigError;
import millrace.spark.options.SinkOptions;
import org.apache.spark.sql.catalyst.InternalRow;
import org.apache.spark.sql.connector.write.BatchWrite;
import org.apache.spark.sql.connector.write.DataWriter;
import org.apache.spark.sql.connector.write.DataWriterFactory;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.PhysicalWriteInfo;
import org.apache.spark.sql.connector.write.SupportsTruncate;
import org.apache.spark.sql.connector.write.Write;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.connector.write.WriterCommitMessage;
import org.apache.spark.sql.connector.write.streaming.StreamingDataWriterFactory;
import org.apache.spark.sql.connector.write.streaming.StreamingWrite;

/**
 * Each row once in the log, whoever dies.
 *
 * <p>A task stages its rows under an attempt of its own: replicated, on disk, visible to nobody. The driver then
 * commits the batch with the attempts of the tasks that Spark counts; the cluster records that decision once and makes
 * the rows visible by itself [rules 27, 28]. A stream's writer is named by Spark's query id, which a checkpoint keeps. A
 * batch write has a name of its own, made once on the driver, unless the options `writer` and `batch` name it: of all
 * writes with that name one is carried out [rule 40].
 */
public class MillraceWrite implements SupportsTruncate, Write {
    private final LogicalWriteInfo info;
    private final SinkOptions options;
    private final Row row;
    private boolean isTruncated;

    public MillraceWrite(LogicalWriteInfo info, Map<String, String> properties) {
        this.info = info;
        options = SinkOptions.parse(properties, Frame.isInsert(info.schema()));
        row = new Row(new Frame(info.schema(), options), options);
    }

    /** Spark calls the output mode "complete" so as well: every batch would hold all rows again. */
    @Override
    public WriteBuilder truncate() {
        isTruncated = true;
        return this;
    }

    @Override
    public Write build() {
        return this;
    }

    @Override
    public BatchWrite toBatch() {
        if (isTruncated) {
            throw Frame.notAppended(false);
        }
        boolean isNamed = options.writer != null;
        String writer = isNamed ? options.writer : "batch-" + UUID.randomUUID();
        return new BatchSink(options, row, writer, options.batch == null ? 0 : options.batch, isNamed);
    }

    @Override
    public StreamingWrite toStreaming() {
        if (isTruncated) {
            throw Frame.notAppended(true);
        }
        if (options.writer != null) {
            throw new ConfigError(
                    "writer and batch name a batch write; a streaming query has both in its checkpoint");
        }
        return new StreamSink(options, row, info.queryId());
    }

    private record BatchSink(SinkOptions options, Row row, String writer, long batch, boolean isNamed)
            implements BatchWrite {
        @Override
        public DataWriterFactory createBatchWriterFactory(PhysicalWriteInfo physical) {
            return new TaskFactory(options, row, writer, batch);
        }

        @Override
        public void commit(WriterCommitMessage[] messages) {
            Decisions.commit(options.access, messages, batch);
        }

        @Override
        public void abort(WriterCommitMessage[] messages) {
            if (isNamed) {
                // A batch that is to be tried again must not be decided here.
                Decisions.abort(options.access, messages);
            } else {
                Decisions.voidBatch(options.access, writer);
            }
        }
    }

    private record StreamSink(SinkOptions options, Row row, String query) implements StreamingWrite {
        @Override
        public StreamingDataWriterFactory createStreamingWriterFactory(PhysicalWriteInfo physical) {
            return new TaskFactory(options, row, query, 0);
        }

        @Override
        public void commit(long batch, WriterCommitMessage[] messages) {
            Decisions.commit(options.access, messages, batch);
        }

        @Override
        public void abort(long batch, WriterCommitMessage[] messages) {
            Decisions.abort(options.access, messages);
        }
    }

    /** Carried to the executors. */
    private record TaskFactory(SinkOptions options, Row row, String writer, long batch)
            implements DataWriterFactory, StreamingDataWriterFactory {
        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task) {
            return new TaskWriter(options, row, writer, batch);
        }

        @Override
        public DataWriter<InternalRow> createWriter(int partition, long task, long epoch) {
            return new TaskWriter(options, row, writer, epoch);
        }
    }
}
