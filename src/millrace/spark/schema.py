"""The columns of a message in Spark, and which of them a query asked for.

Python data sources are not told which columns a query uses. A schema that the user gives is taken as that
choice: any of the columns, each with its own type.
"""

from pyspark.sql.types import (
    ArrayType,
    BinaryType,
    BooleanType,
    IntegerType,
    LongType,
    StringType,
    StructField,
    StructType,
    TimestampType,
)

from millrace.errors import ConfigError

USER_PROPERTY = StructType([StructField("name", StringType()), StructField("value", StringType())])

PROPERTIES = StructType(
    [
        StructField("payload_format", IntegerType()),
        StructField("message_expiry_s", LongType()),
        StructField("response_topic", StringType()),
        StructField("correlation_data", BinaryType()),
        # A list and not a map: MQTT lets a name stand there twice, and keeps the order.
        StructField("user", ArrayType(USER_PROPERTY)),
    ]
)

SCHEMA = StructType(
    [
        StructField("topic", StringType()),
        StructField("shard", IntegerType()),
        StructField("offset", LongType()),
        StructField("timestamp", TimestampType()),
        StructField("payload", BinaryType()),
        StructField("qos", IntegerType()),
        StructField("retain", BooleanType()),
        StructField("publisher", StringType()),
        StructField("content_type", StringType()),
        StructField("properties", PROPERTIES),
    ]
)


def check(schema: StructType) -> None:
    """ConfigError unless every field is a column of the source with its type."""
    known = {field.name: field.dataType for field in SCHEMA.fields}
    for field in schema.fields:
        if field.name not in known:
            raise ConfigError(f"there is no column {field.name!r}; there are {', '.join(known)}")
        if field.dataType != known[field.name]:
            raise ConfigError(
                f"column {field.name!r} is {known[field.name].simpleString()}, "
                f"not {field.dataType.simpleString()}; cast it after reading"
            )
