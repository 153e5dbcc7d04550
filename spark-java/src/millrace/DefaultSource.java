package millrace;

import millrace.spark.MillraceProvider;

/**
 * What `format("millrace")` is where this jar is. Spark looks for a class of this name behind the registered names and
 * before the sources in Python, so the one in Python serves where there is no jar, and both may be installed.
 */
public final class DefaultSource extends MillraceProvider {}
