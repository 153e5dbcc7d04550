package millrace.spark.source;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import millrace.spark.common.Columns;
import millrace.spark.offsets.Extent;
import millrace.spark.offsets.Place;
import millrace.spark.offsets.Position;
import millrace.spark.offsets.Start;
import millrace.spark.options.Options;
import org.apache.spark.sql.connector.expressions.filter.Predicate;
import org.apache.spark.sql.connector.metric.CustomMetric;
import org.apache.spark.sql.connector.read.Batch;
import org.apache.spark.sql.connector.read.InputPartition;
import org.apache.spark.sql.connector.read.PartitionReaderFactory;
import org.apache.spark.sql.connector.read.Scan;
import org.apache.spark.sql.connector.read.SupportsPushDownRequiredColumns;
import org.apache.spark.sql.connector.read.SupportsPushDownV2Filters;
import org.apache.spark.sql.connector.read.streaming.MicroBatchStream;
import org.apache.spark.sql.types.StructType;

/** One read of a query: takes the columns and the conditions that Spark names, then is a batch or a stream. */
public final class MillraceScan implements SupportsPushDownRequiredColumns, SupportsPushDownV2Filters, Scan, Batch {
    private final Options given;
    private final Conditions conditions = new Conditions();
    private final List<Predicate> pushed = new ArrayList<>();
    private StructType schema;

    public MillraceScan(Options given, StructType schema) {
        Columns.check(schema);
        this.given = given;
        this.schema = schema;
    }

    @Override
    public void pruneColumns(StructType required) {
        schema = Columns.wanted(required);
    }

    @Override
    public Predicate[] pushPredicates(Predicate[] predicates) {
        List<Predicate> left = new ArrayList<>();
        for (Predicate one : predicates) {
            (conditions.push(one) ? pushed : left).add(one);
        }
        return left.toArray(new Predicate[0]);
    }

    @Override
    public Predicate[] pushedPredicates() {
        return pushed.toArray(new Predicate[0]);
    }

    @Override
    public Scan build() {
        return this;
    }

    @Override
    public StructType readSchema() {
        return schema;
    }

    @Override
    public String description() {
        String what = given.pattern == null ? String.join(", ", given.streams) : given.pattern.pattern();
        return "millrace " + what + (pushed.isEmpty() ? "" : " where " + pushed);
    }

    @Override
    public CustomMetric[] supportedCustomMetrics() {
        return Figures.supported();
    }

    @Override
    public Scan.ColumnarSupportMode columnarSupportMode() {
        return Scan.ColumnarSupportMode.SUPPORTED;
    }

    @Override
    public Batch toBatch() {
        given.batchStart();
        return this;
    }

    @Override
    public MicroBatchStream toMicroBatchStream(String checkpoint) {
        return new MillraceStream(given, schema, conditions);
    }

    @Override
    public InputPartition[] planInputPartitions() {
        ClusterReader cluster = ClusterReader.of(given.access);
        Map<Long, Extent> extents = Shards.extents(cluster, given);
        Position start =
                Shards.position(cluster, "startingOffsets", given.batchStart(), extents, Place.EARLIEST);
        Start ending = given.end == null ? Start.of(Place.LATEST) : given.end;
        Position end = Shards.position(cluster, "endingOffsets", ending, extents, Place.LATEST);
        return Shards.tasks(
                conditions.narrowed(start.until(end, Shards.streams(extents))), given, cluster.http.firstUrl());
    }

    @Override
    public PartitionReaderFactory createReaderFactory() {
        return new ReaderFactory(given, schema, conditions);
    }
}
