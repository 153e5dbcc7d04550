package millrace.spark;

import java.util.Map;
import java.util.Set;
import millrace.spark.options.Options;
import millrace.spark.sink.MillraceWrite;
import millrace.spark.source.MillraceScan;
import org.apache.spark.sql.connector.catalog.SupportsRead;
import org.apache.spark.sql.connector.catalog.SupportsWrite;
import org.apache.spark.sql.connector.catalog.TableCapability;
import org.apache.spark.sql.connector.read.ScanBuilder;
import org.apache.spark.sql.connector.write.LogicalWriteInfo;
import org.apache.spark.sql.connector.write.WriteBuilder;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** A stream, or several, as a table. */
public class MillraceTable implements SupportsRead, SupportsWrite {
    private final Map<String, String> properties;
    private final StructType schema;

    public MillraceTable(StructType schema, Map<String, String> properties) {
        this.schema = schema;
        this.properties = properties;
    }

    @Override
    public String name() {
        return "millrace";
    }

    @Override
    @Deprecated
    public StructType schema() {
        return schema;
    }

    @Override
    public Set<TableCapability> capabilities() {
        return Set.of(
                TableCapability.BATCH_READ,
                TableCapability.MICRO_BATCH_READ,
                TableCapability.BATCH_WRITE,
                TableCapability.STREAMING_WRITE,
                TableCapability.TRUNCATE);
    }

    @Override
    public ScanBuilder newScanBuilder(CaseInsensitiveStringMap options) {
        return new MillraceScan(Options.parse(properties), schema);
    }

    @Override
    public WriteBuilder newWriteBuilder(LogicalWriteInfo info) {
        return new MillraceWrite(info, properties);
    }
}
