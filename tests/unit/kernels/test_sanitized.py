"""The C kernels touch no byte that is not theirs: fuzzed under the sanitizers of addresses and behaviour.

The extension is built anew with both; the interpreter stays as it is, so the sanitizer's library has to be
loaded before it. `PYTHONMALLOC=malloc` gives every bytes object bounds of its own.
"""

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
KERNELS = ROOT / "src" / "millrace" / "kernels"
SOURCES = tuple(KERNELS / name for name in ("_kernels.c", "_blocks.c", "_filters.c"))
FUZZ = Path(__file__).with_name("fuzz_sanitized.py")
FOUND_STATUS = 99
# A one-byte read past the end of a malloc'ed block, which proves that the sanitizer watches.
OVERREAD = """
#define PY_SSIZE_T_CLEAN
#include <Python.h>
static PyObject *overread(PyObject *self, PyObject *n) {
  (void)self;
  char *block = malloc(16);
  int value = block[PyLong_AsLong(n)];
  free(block);
  return PyLong_FromLong(value);
}
static PyMethodDef methods[] = {{"overread", overread, METH_O, ""}, {NULL, NULL, 0, NULL}};
static struct PyModuleDef module = {
    PyModuleDef_HEAD_INIT, "control", "", -1, methods, NULL, NULL, NULL, NULL};
PyMODINIT_FUNC PyInit_control(void) { return PyModule_Create(&module); }
"""


def _build(target: Path, *sources: Path) -> None:
    subprocess.run(
        [
            "gcc",
            *("-g", "-O1", "-fPIC", "-shared", "-Wall", "-Wextra", "-Werror"),
            *("-fsanitize=address,undefined", "-fno-sanitize-recover=all", "-fno-omit-frame-pointer"),
            f"-I{sysconfig.get_paths()['include']}",
            *map(str, sources),
            *("-o", str(target)),
        ],
        check=True,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def environment() -> dict[str, str]:
    if shutil.which("gcc") is None:
        pytest.skip("gcc is not installed")
    library = subprocess.run(
        ["gcc", "-print-file-name=libasan.so"], capture_output=True, text=True, check=False
    ).stdout
    if not Path(library.strip()).is_absolute():
        pytest.skip("the address sanitizer's library is not installed")
    return {
        **os.environ,
        "LD_PRELOAD": library.strip(),
        # The interpreter keeps memory until the end on purpose.
        "ASAN_OPTIONS": f"detect_leaks=0:exitcode={FOUND_STATUS}",
        "UBSAN_OPTIONS": f"exitcode={FOUND_STATUS}",
        "PYTHONMALLOC": "malloc",
        "PYTHONPATH": f"{ROOT / 'src'}:{ROOT / 'tests'}",
        "MILLRACE_KERNELS": "python",
    }


@pytest.fixture(scope="module")
def extension(environment: dict[str, str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    target = tmp_path_factory.mktemp("sanitized") / "_kernels.so"
    _build(target, *SOURCES)
    return target


def _fuzz(extension: Path, environment: dict[str, str], seed: int, seconds: float) -> int:
    done = subprocess.run(
        [sys.executable, str(FUZZ), str(extension), str(seed), str(seconds)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=20 * seconds + 60,
        check=False,
    )
    assert done.returncode == 0, f"seed {seed}:\n{done.stdout[-2000:]}\n{done.stderr[-6000:]}"
    return int(done.stdout)


def test_the_sanitizer_would_notice(environment: dict[str, str], tmp_path: Path) -> None:
    """The control: a read one byte past a block ends the process with the sanitizer's status."""
    source, target = tmp_path / "control.c", tmp_path / "control.so"
    source.write_text(OVERREAD)
    _build(target, source)
    call = (
        "import importlib.util, sys;"
        "spec = importlib.util.spec_from_file_location('control', sys.argv[1]);"
        "module = importlib.util.module_from_spec(spec); spec.loader.exec_module(module);"
        "module.overread(int(sys.argv[2]))"
    )
    for index, status in ((15, 0), (16, FOUND_STATUS)):
        done = subprocess.run(
            [sys.executable, "-c", call, str(target), str(index)],
            env=environment,
            capture_output=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == status, done.stderr.decode()


def test_no_kernel_leaves_its_bounds(extension: Path, environment: dict[str, str]) -> None:
    assert _fuzz(extension, environment, seed=1, seconds=2.0) > 500


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 6))
def test_no_kernel_leaves_its_bounds_for_long(
    extension: Path, environment: dict[str, str], seed: int
) -> None:
    assert _fuzz(extension, environment, seed, seconds=30.0) > 10_000
