package millrace.spark;

import java.util.Map;
import millrace.spark.common.Columns;
import millrace.spark.options.Options;
import org.apache.spark.sql.connector.catalog.Table;
import org.apache.spark.sql.connector.catalog.TableProvider;
import org.apache.spark.sql.connector.expressions.Transform;
import org.apache.spark.sql.sources.DataSourceRegister;
import org.apache.spark.sql.types.StructType;
import org.apache.spark.sql.util.CaseInsensitiveStringMap;

/** What Spark finds under the name of the format. */
public class MillraceProvider implements TableProvider, DataSourceRegister {
    @Override
    public String shortName() {
        return "millrace-java";
    }

    @Override
    public StructType inferSchema(CaseInsensitiveStringMap options) {
        Options.parse(options.asCaseSensitiveMap());
        return Columns.SCHEMA;
    }

    /** A schema that somebody gives chooses columns. */
    @Override
    public boolean supportsExternalMetadata() {
        return true;
    }

    @Override
    public Table getTable(StructType schema, Transform[] partitioning, Map<String, String> properties) {
        return new MillraceTable(schema, properties);
    }
}
