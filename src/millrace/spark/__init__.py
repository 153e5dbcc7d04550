"""Spark's side of the log: a data source that reads blocks as Arrow batches. See `docs/reference/spark.md`.

Only this package and what it is started from need PySpark, PyArrow and NumPy; the broker never imports it.
"""
