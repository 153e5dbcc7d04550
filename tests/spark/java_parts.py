"""The jar with the source in Java, built where it is not up to date, and the classes that only tests need."""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

JAR_VARIABLE = "MILLRACE_SPARK_JAR"
"""With it the jar is in the session, so that `format("millrace")` is the source in Java in every test."""


def is_java() -> bool:
    return bool(os.environ.get(JAR_VARIABLE))


def built_jar() -> str:
    from pyspark_millrace import jar

    subprocess.run([ROOT / "tools" / "jar.sh"], env={**os.environ, "PYTHON": sys.executable}, check=True)
    return jar()


def class_path(jar: str) -> str:
    import pyspark

    return os.pathsep.join((jar, str(Path(pyspark.__file__).parent / "jars" / "*")))


def jar_of_tests(directory: Path) -> str:
    """A jar with what is in `spark-java/test`."""
    classes = directory / "classes"
    sources = sorted((ROOT / "spark-java" / "test").rglob("*.java"))
    subprocess.run(
        ["javac", "--release", "17", "-cp", class_path(built_jar()), "-d", classes, *sources], check=True
    )
    made = directory / "tests.jar"
    subprocess.run(["jar", "--create", "--file", made, "-C", classes, "."], check=True)
    return str(made)
