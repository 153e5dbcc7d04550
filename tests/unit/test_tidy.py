"""Style that a machine can see: who may import whom, what pure code may not call, how long things are."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SOURCE = ROOT / "src" / "millrace"

# A room may import what stands on a lower floor, and itself.
FLOORS = {
    "reasons": 0,
    "types": 0,
    "errors": 0,
    "version": 0,
    "limits": 0,
    "settings": 0,
    "kernels": 1,
    "broker": 2,
    "replication": 2,
    "storage": 2,
    "wire": 2,
    "driver": 3,
    "tracing": 3,
    "node": 4,
    "client": 4,
    "embedded": 5,
    "spark": 5,
    "testing": 6,
    "local_cluster": 6,
    "transfer": 6,
    "lab": 7,
    "cli": 8,
}
PURE = ("kernels", "broker", "replication", "storage", "wire", "driver")
ALLOWED_OUTSIDE = {
    "broker": {"msgspec"},
    "replication": {"msgspec"},
    "wire": {"msgspec", "wsproto"},
    "kernels": {"google_crc32c"},
}
# Clocks, chance, the outside world: these come in as values.
BANNED_MODULES = {"asyncio", "random", "secrets", "socket", "ssl", "subprocess", "threading", "time", "uuid"}
BANNED_NAMES = {"open", "print", "input", "eval", "exec"}
# Exceptions, each with its reason.
MAY_IMPORT = {
    ("kernels/__init__.py", "os"): "chooses between two equal implementations once, at import",
    ("storage/disk.py", "os"): "the only file calls",
}
# A machine is handed its generator of random numbers; it needs the name of the type.
MAY_NAME_RANDOM = ("replication",)

FILE_LINES_MAX = 800
FUNCTION_LINES_MAX = 60
# Exceptions, each with its reason.
MAY_BE_LONG = {
    ("kernels/pure.py", "scan"): "one loop over bytes, whose state would have to be passed to every part",
    ("broker/sessions/session.py", "__init__"): "one line for each slot, and what it is for",
}


def modules() -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted(SOURCE.rglob("*.py")):
        yield path.relative_to(SOURCE), ast.parse(path.read_text())


def imports(tree: ast.Module) -> Iterator[tuple[str, int]]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.name, node.lineno
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module, node.lineno


def room_of(path: Path) -> str:
    return path.parts[0].removesuffix(".py")


def test_imports_go_one_way() -> None:
    """Rooms import only from lower floors; siblings do not know each other."""
    wrong = []
    for path, tree in modules():
        room = room_of(path)
        if room == "__init__":
            continue
        for name, line in imports(tree):
            parts = name.split(".")
            if parts[0] != "millrace" or len(parts) < 2:
                continue
            target = parts[1]
            if target != room and FLOORS[target] >= FLOORS[room] and not FLOORS[room] == FLOORS[target] == 0:
                wrong.append(f"{path}:{line} imports {name}")
    assert wrong == []


def imported_modules(name: str, tree: ast.Module, known: set[str]) -> set[str]:
    """What a module imports of `known`, wherever in it the import stands."""
    found = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            whole = [f"{node.module}.{alias.name}" for alias in node.names]
            found |= {one if one in known else node.module for one in whole}
    return (found & known) - {name}


def cycle(graph: dict[str, set[str]]) -> list[str]:
    """Modules that import each other in a circle; empty where none do."""
    left = {name: set(targets) for name, targets in graph.items()}
    while leaves := {name for name, targets in left.items() if not targets}:
        left = {name: targets - leaves for name, targets in left.items() if name not in leaves}
    if not left:
        return []
    path = [min(left)]
    while (following := min(left[path[-1]])) not in path:
        path.append(following)
    return path[path.index(following) :]


def test_no_modules_import_in_a_circle() -> None:
    """Imports for type checking and inside functions count: what needs one to escape a circle is in one."""
    trees = {".".join(("millrace", *path.with_suffix("").parts)): tree for path, tree in modules()}
    trees = {name.removesuffix(".__init__"): tree for name, tree in trees.items()}
    graph = {name: imported_modules(name, tree, set(trees)) for name, tree in trees.items()}
    assert cycle(graph) == []


def test_a_circle_of_imports_is_found() -> None:
    late = ast.parse("def f():\n    from a.b import c")
    typed = ast.parse("from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from a import d")
    known = {"a", "a.b", "a.d", "e"}
    assert imported_modules("a.d", late, known) == {"a.b"}
    assert imported_modules("a.b", typed, known) == {"a.d"}
    assert set(cycle({"a": set(), "a.d": {"a.b", "a"}, "a.b": {"a.d"}, "e": {"a.b"}})) == {"a.b", "a.d"}
    assert cycle({"a": set(), "a.d": {"a.b"}, "a.b": {"a"}, "e": {"a.b"}}) == []


def test_pure_code_stays_pure() -> None:
    """No clock, chance, socket, file or third party in the pure rooms."""
    import sys

    wrong = []
    for path, tree in modules():
        room = room_of(path)
        if room not in PURE:
            continue
        for name, line in imports(tree):
            top = name.split(".")[0]
            if top == "millrace" or (str(path), top) in MAY_IMPORT:
                continue
            if top == "random" and room in MAY_NAME_RANDOM:
                continue
            if str(path) == "storage/disk.py":
                continue
            allowed = top in sys.stdlib_module_names or top in ALLOWED_OUTSIDE.get(room, set())
            if top in BANNED_MODULES or top == "os" or not allowed:
                wrong.append(f"{path}:{line} imports {name}")
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id in BANNED_NAMES
            ):
                wrong.append(f"{path}:{node.lineno} calls {node.func.id}")
            if isinstance(node, ast.AsyncFunctionDef | ast.Await):
                wrong.append(f"{path}:{node.lineno} is asynchronous")
    assert wrong == []


def _mentions_callable(annotation: ast.expr | None) -> bool:
    return annotation is not None and any(
        (isinstance(node, ast.Name) and node.id == "Callable")
        or (isinstance(node, ast.Attribute) and node.attr == "Callable")
        or (isinstance(node, ast.Constant) and isinstance(node.value, str) and "Callable" in node.value)
        for node in ast.walk(annotation)
    )


def _kept_callables(owner: ast.ClassDef) -> Iterator[int]:
    """Lines at which a class keeps a function that somebody gave it, or a closure of its own."""
    for node in ast.walk(owner):
        if isinstance(node, ast.AnnAssign) and _mentions_callable(node.annotation):
            yield node.lineno
        if not isinstance(node, ast.FunctionDef):
            continue
        given = node.args.args + node.args.kwonlyargs
        functions = {one.arg for one in given if _mentions_callable(one.annotation)}
        for inner in ast.walk(node):
            if isinstance(inner, ast.FunctionDef) and inner is not node:
                yield inner.lineno
            if isinstance(inner, ast.Assign) and any(isinstance(to, ast.Attribute) for to in inner.targets):
                value = inner.value
                if isinstance(value, ast.Lambda) or (isinstance(value, ast.Name) and value.id in functions):
                    yield inner.lineno


@pytest.mark.parametrize("room", ["broker", "replication"])
def test_pure_classes_keep_no_functions(room: str) -> None:
    """Values in, values out: what must happen later is described as data, and what must be looked up is a
    view with a name. A function may be a parameter that is called at once."""
    wrong = [
        f"{path}:{line}"
        for path, tree in modules()
        if room_of(path) == room
        for owner in ast.walk(tree)
        if isinstance(owner, ast.ClassDef)
        for line in _kept_callables(owner)
    ]
    assert wrong == []


@pytest.mark.parametrize(
    "body",
    [
        "self.then: Callable[[], None] | None = None",
        "self.then = then",
        "self.then = lambda: None",
        "def later(): self.ready = True",
    ],
)
def test_a_function_that_a_class_keeps_is_found(body: str) -> None:
    source = f"class A:\n    def __init__(self, then: Callable[[], None]) -> None:\n        {body}\n"
    (owner,) = ast.parse(source).body
    assert isinstance(owner, ast.ClassDef) and list(_kept_callables(owner)) == [3]


def test_files_and_functions_are_small() -> None:
    wrong = []
    for path, tree in modules():
        lines = len((SOURCE / path).read_text().splitlines())
        if lines > FILE_LINES_MAX:
            wrong.append(f"{path} has {lines} lines")
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or 0) - node.lineno + 1
                if length > FUNCTION_LINES_MAX and (str(path), node.name) not in MAY_BE_LONG:
                    wrong.append(f"{path}:{node.lineno} {node.name} has {length} lines")
    assert wrong == []


def test_what_may_be_long_is_long() -> None:
    """An exception that is not needed any more goes."""
    long = {
        (str(path), node.name)
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and (node.end_lineno or 0) - node.lineno + 1 > FUNCTION_LINES_MAX
    }
    assert set(MAY_BE_LONG) - long == set()


def test_every_module_says_what_it_is_for() -> None:
    silent = [str(path) for path, tree in modules() if tree.body and ast.get_docstring(tree) is None]
    assert silent == []


@pytest.mark.parametrize("word", ["TODO", "FIXME", "XXX", "NotImplementedError"])
def test_nothing_is_left_for_later(word: str) -> None:
    found = [str(path) for path in SOURCE.rglob("*.py") if word in path.read_text()]
    assert found == []


def test_tests_do_not_sleep() -> None:
    """A test waits for a condition, through `waiting`, or for nothing."""
    found = []
    for path in sorted((ROOT / "tests").rglob("*.py")):
        # The simulator's own tests sleep on its virtual clock.
        if path.name == "waiting.py" or path.parent.name == "sim":
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Attribute)
                and node.func.attr == "sleep"
                and isinstance(node.func.value, ast.Name)
                and node.func.value.id in ("time", "asyncio")
                and not (node.args and isinstance(node.args[0], ast.Constant) and node.args[0].value == 0)
            ):
                found.append(f"{path.relative_to(ROOT)}:{node.lineno}")
    assert found == []


# Bounds that others may use and that stand elsewhere, each with its reason.
MAY_STAND_ELSEWHERE = {
    ("kernels/pure.py", "PACKET_ID_MAX"): "a kernel and its twin in C share it with nothing else",
}


def bounds(tree: ast.Module) -> Iterator[tuple[str, int]]:
    """Names of a module that end in _MAX, and where they are made."""
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", None)]
        for target in targets:
            for name in ast.walk(target) if target is not None else ():
                if isinstance(name, ast.Name) and name.id.endswith("_MAX"):
                    yield name.id, node.lineno


def test_bounds_that_others_meet_are_in_limits() -> None:
    """What a client, a peer, an operator or another module can run into is in limits.py, where relations are
    asserted; what only shapes the work of one module is private to it."""
    wrong = []
    for path, tree in modules():
        if room_of(path) in ("limits", "lab"):
            continue
        for name, line in bounds(tree):
            if not name.startswith("_") and (str(path), name) not in MAY_STAND_ELSEWHERE:
                wrong.append(f"{path}:{line} {name} belongs into limits.py")
        for node in ast.walk(tree):
            if isinstance(node, ast.ImportFrom):
                wrong += [
                    f"{path}:{node.lineno} imports {alias.name}, which is private"
                    for alias in node.names
                    if alias.name.startswith("_") and alias.name.endswith("_MAX")
                ]
    assert wrong == []


# What turns data into code, or a text into a command.
FORBIDDEN_CALLS = {"eval", "exec", "__import__"}
FORBIDDEN_MODULES = {"pickle", "cPickle", "dill", "shelve", "marshal", "yaml", "cloudpickle"}
# Exceptions, each with its reason.
MAY_PICKLE = {
    "spark/job.py": "tells PySpark to carry the functions of a pipeline's own file to its workers",
}


def dangers(path: str, tree: ast.Module) -> Iterator[str]:
    """Places where data may become code, or a shell is asked."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [alias.name for alias in node.names]
            parts = {part for name in (*names, getattr(node, "module", "") or "") for part in name.split(".")}
            if parts & FORBIDDEN_MODULES and path not in MAY_PICKLE:
                yield f"{path}:{node.lineno} imports {sorted(parts & FORBIDDEN_MODULES)}"
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        if isinstance(called, ast.Name) and called.id in FORBIDDEN_CALLS:
            yield f"{path}:{node.lineno} calls {called.id}"
        if isinstance(called, ast.Attribute):
            owner = called.value.id if isinstance(called.value, ast.Name) else ""
            if (owner, called.attr) in (("os", "system"), ("os", "popen"), ("yaml", "load")):
                yield f"{path}:{node.lineno} calls {owner}.{called.attr}"
            if called.attr == "create_subprocess_shell":
                yield f"{path}:{node.lineno} calls {called.attr}"
        for keyword in node.keywords:
            if keyword.arg == "shell" and not (
                isinstance(keyword.value, ast.Constant) and keyword.value.value is False
            ):
                yield f"{path}:{node.lineno} asks a shell"


def test_data_never_becomes_code() -> None:
    """No pickle, eval, exec, yaml.load and no shell: what comes from the network stays data."""
    assert [danger for path, tree in modules() for danger in dangers(str(path), tree)] == []


@pytest.mark.parametrize(
    "text",
    [
        "import pickle",
        "from pickle import loads",
        "def f():\n    import cloudpickle",
        "from pyspark import cloudpickle",
        "import yaml\nyaml.load(x)",
        "eval(x)",
        "exec(x)",
        "subprocess.run(x, shell=True)",
        "subprocess.run(x, shell=flag)",
        "os.system(x)",
        "asyncio.create_subprocess_shell(x)",
    ],
)
def test_what_makes_code_of_data_is_found(text: str) -> None:
    assert list(dangers("x.py", ast.parse(text)))
    assert not list(dangers("x.py", ast.parse("re.compile(x)\nsubprocess.run(x, shell=False)\nrun.exec(x)")))
