"""Mutation testing: changes one place of the code at a time and sees whether a quick test fails (``make mutants``).

The sample is fixed: each place has a key made of its file, function and text, and the places whose keys come first are taken,
so that an edit elsewhere leaves the sample as it is. Only tests that run the changed line are started, those of the cheapest
files first, in a process forked from one that has already imported torch. Which test runs which line is recorded once and
kept in ``build/mutants`` until the test file or the code it runs changes. Places are changed in copies of the tree.
``mutants_equivalent.txt`` lists changes that no test can notice, each with its reason.
"""

from __future__ import annotations

import argparse
import ast
import copy
import difflib
import hashlib
import importlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parents[1]
ROOMS = ("losses", "evaluation", "step", "training", "inference")
BUILD, EQUIVALENT = HERE / "build" / "mutants", HERE / "tools" / "mutants_equivalent.txt"
QUICK, BUDGET = ("-m", "not slow and not release and not shared_data"), 120.0
"""Which tests are run, and for how many seconds per mutant at most, as measured when they were recorded."""
OTHER = {ast.Lt: ast.LtE, ast.Gt: ast.GtE, ast.Eq: ast.NotEq, ast.In: ast.NotIn, ast.Is: ast.IsNot, ast.And: ast.Or}
OTHER |= {ast.Add: ast.Sub, ast.Mult: ast.Div, ast.BitOr: ast.BitAnd}
OTHER |= {there: here for here, there in OTHER.items()} | {ast.FloorDiv: ast.Mult, ast.Pow: ast.Mult, ast.Mod: ast.Mult}
MORE = (
    "tests/recipes/test_instance_search.py",
    "tests/cli/test_eval_verb.py",
    "tests/cli/test_train_command.py",
    "tests/outside/test_outside.py",
)
"""Tests of what the rooms do together, in addition to the tests of each room."""
ALIVE = ("survived", "no test")


@cache
def source_of(path: str) -> bytes:
    """As it was when the sample was drawn: the tree may be edited meanwhile."""
    return (HERE / path).read_bytes()


@dataclass(frozen=True)
class Mutant:
    """Bytes ``start`` to ``end`` of ``path`` become ``text``; ``lines`` are those of the statement, None outside functions."""

    path: str
    start: int
    end: int
    text: str
    lines: range | None
    key: str

    def source(self) -> str:
        whole = source_of(self.path)
        return (whole[: self.start] + self.text.encode() + whole[self.end :]).decode()

    def diff(self) -> str:
        before, after = source_of(self.path).decode().splitlines(), self.source().splitlines()
        return "\n".join(difflib.unified_diff(before, after, self.path, self.key, "", "", 0, "")) + "\n"


def changed(node: ast.AST) -> Iterator[ast.AST]:
    """What may stand in the place of ``node``, or of its condition."""
    new: Any = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[first, *rest]) if type(first) in OTHER:
            new.ops = [OTHER[type(first)](), *rest]
        case ast.BoolOp(op=op) | ast.BinOp(op=op) if type(op) in OTHER:
            if any(isinstance(getattr(part, "value", 0), str) for part in ast.walk(new)):
                return  # a text
            new.op = OTHER[type(op)]()
        case ast.UnaryOp(operand=new):
            pass
        case ast.Constant(value=bool(value)):
            new.value = not value
        case ast.Constant(value=int(value) | float(value)):
            new.value = value + 1 if isinstance(value, int) or not value else value * 2
        case ast.Return(value=value) if value is not None and getattr(value, "value", 0) is not None:
            new.value = ast.Constant(None)
        case ast.If(test=test) | ast.While(test=test) | ast.IfExp(test=test):
            if not isinstance(test, ast.Compare | ast.UnaryOp):  # those are changed themselves
                yield ast.UnaryOp(ast.Not(), test)
            return
        case ast.Call(keywords=keywords):
            for keyword in keywords:
                if keyword.arg is not None:
                    new.keywords = [other for other in keywords if other is not keyword]
                    yield new
            return
        case ast.Expr(value=ast.Call()) | ast.AugAssign() | ast.Assign(targets=[ast.Attribute() | ast.Subscript()]):
            new = ast.Pass()
        case _:
            return
    yield new


def mutants(path: Path) -> Iterator[Mutant]:
    """Every change of a file, but for texts, type hints, what is raised and how an object is shown."""
    name = path.relative_to(HERE).as_posix()
    source = source_of(name)
    begins = [0]
    for line in source.splitlines(keepends=True):
        begins.append(begins[-1] + len(line))
    seen: Counter[str] = Counter()

    def visit(node: ast.AST, within: str, lines: range | None) -> Iterator[Mutant]:
        if isinstance(node, ast.Raise | ast.JoinedStr | ast.Import | ast.ImportFrom | ast.arg):
            return
        callee = ast.unparse(getattr(node, "func", getattr(node, "test", ast.Pass())))
        if callee in ("ProgressLine", "warnings.warn", "TYPE_CHECKING") or callee.startswith("logger."):
            return
        if isinstance(node, ast.FunctionDef | ast.ClassDef):
            if node.name in ("__repr__", "__str__", "extra_repr"):
                return
            within = f"{within}.{node.name}"
            lines = range(node.lineno, (node.end_lineno or 0) + 1) if isinstance(node, ast.FunctionDef) else lines
        elif isinstance(node, ast.stmt) and node in inner:
            body = getattr(node, "body", None)
            lines = range(node.lineno, body[0].lineno if body else (node.end_lineno or 0) + 1)
        for new in changed(node):
            place: Any = node.test if isinstance(node, ast.If | ast.While | ast.IfExp) else node
            start, end = (
                begins[place.lineno - 1] + place.col_offset,
                begins[place.end_lineno - 1] + place.end_col_offset,
            )
            text = ast.unparse(new) if isinstance(new, ast.stmt) else f"({ast.unparse(new)})"
            identity = f"{name} {within} {type(node).__name__} {ast.unparse(place)} {text}"
            seen[identity] += 1
            key = hashlib.sha256(f"{identity} {seen[identity]}".encode()).hexdigest()[:10]
            yield Mutant(name, start, end, text, lines, key)
        for field, value in ast.iter_fields(node):
            if field not in ("annotation", "returns", "decorator_list"):
                for child in value if isinstance(value, list) else [value]:
                    if isinstance(child, ast.AST):
                        yield from visit(child, within, lines)

    tree = ast.parse(source)
    functions = [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]
    inner = {child for function in functions for statement in function.body for child in ast.walk(statement)}
    return visit(tree, "", None)


def sample(count: int) -> list[Mutant]:
    files = [file for room in ROOMS for file in sorted((HERE / "src/recollect" / room).rglob("*.py"))]
    # The references are the equations that tests compare with; an __init__ only exports.
    files = [file for file in files if not file.name.startswith(("__init__", "reference"))]
    return sorted((one for file in files for one in mutants(file)), key=lambda one: one.key)[:count]


class Recorder:
    """A pytest plugin: seconds of each test, and lines of the rooms that it runs; those of fixtures count for all, ``"*"``."""

    def __init__(self, root: Path) -> None:
        self.seconds: dict[str, float] = defaultdict(float)
        self.lines: dict[str, dict[str, list[int]]] = {}
        self._root, self._seen, self._now = f"{root}/", set[tuple[str, str, int]](), ""
        self._rooms = tuple(f"{root}/src/recollect/{room}/" for room in ROOMS)

    def pytest_runtest_logreport(self, report: Any) -> None:
        self.seconds[report.nodeid] += report.duration

    def pytest_runtest_setup(self) -> None:
        self._now = "*"
        threading.settrace(self._trace)
        sys.settrace(self._trace)

    def pytest_runtest_call(self, item: Any) -> None:
        self._now = item.nodeid

    def pytest_runtest_teardown(self) -> None:
        self._now = "*"

    def pytest_sessionfinish(self) -> None:
        sys.settrace(None)
        for test, path, line in sorted(self._seen):
            self.lines.setdefault(path, {}).setdefault(test, []).append(line)

    def _trace(self, frame: Any, event: str, _: Any) -> Any:
        code = frame.f_code
        if not code.co_filename.startswith(self._rooms) or code.co_name == "<module>":
            return None
        path, seen = code.co_filename.removeprefix(self._root), self._seen

        def local(frame: Any, event: str, _: Any) -> Any:
            seen.add((self._now, path, frame.f_lineno))
            return local

        return local(frame, event, None)


TREES = Path(tempfile.gettempdir()) / f"mutants-{os.getpid()}"


def run(job: tuple[Any, list[list[str]], float, Mutant | None]) -> tuple[Any, str, list[str], dict[str, Any]]:
    """Run tests, with a change or recording them, in a forked process and this worker's copy of the tree.

    Returns:
        What the job is called, its outcome (``"killed"``, ``"timeout"`` or one of ``ALIVE``), the output, what was recorded.
    """
    name, tests, limit, change = job
    tree = TREES / multiprocessing.current_process().name
    if not tree.exists():
        shutil.copytree(HERE, tree, ignore=shutil.ignore_patterns(".git", ".venv", "build", "dist", ".*_cache"))
    if change is not None:
        shutil.copy2(tree / change.path, tree / "original.py")
        (tree / change.path).write_text(change.source(), "utf-8")
        for compiled in (tree / change.path).parent.glob(f"__pycache__/{Path(change.path).stem}.*"):
            compiled.unlink()  # Python tells it from that of an earlier change by the second and the size only
    record_file = tree / "found.json"
    record_file.write_text("{}")
    pid, end = os.fork(), time.monotonic() + limit
    if pid == 0:
        run_tests(tree, tests, change is None)
    while not (ended := os.waitpid(pid, os.WNOHANG)[0]) and time.monotonic() < end:
        time.sleep(0.02)
    if not ended:
        os.killpg(pid, signal.SIGKILL)
        os.waitpid(pid, 0)
    if change is not None:
        shutil.copy2(tree / "original.py", tree / change.path)
    record = json.loads(record_file.read_text())
    outcome = {0: "survived", 5: "no test"}.get(record.get("code"), "killed") if ended else "timeout"
    return name, outcome, (tree / "output.txt").read_text("utf-8", "replace").splitlines(), record


def run_tests(tree: Path, files: list[list[str]], record: bool) -> None:
    """The forked process: tests of one file after another until one fails."""
    os.setsid()
    for number in (1, 2):
        os.dup2(os.open(tree / "output.txt", os.O_CREAT | os.O_WRONLY | os.O_TRUNC), number)
    os.chdir(tree)
    os.environ |= {"PYTHONPATH": f"{tree}/src", "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    sys.path[:0] = [f"{tree}/src", str(tree)]
    import pytest

    recorder, code = Recorder(tree), 5
    options = ["-q", "--no-header", "-p", "no:cacheprovider", "--basetemp", f"{tree}/tmp", "-x"]
    for tests in files:
        code = int(pytest.main([*tests, *options], plugins=[recorder] if record else []))
        if code not in (0, 5):
            break
    record = {"code": code, "seconds": recorder.seconds, "lines": recorder.lines}
    if record:
        record["digests"] = {path: digest(tree, path) for path in (files[0][-1], *recorder.lines)}
    (tree / "found.json").write_text(json.dumps(record))
    os._exit(0)


def digest(root: Path, path: str) -> str:
    return hashlib.sha256((root / path).read_bytes()).hexdigest()[:16] if (root / path).is_file() else ""


def recorded(pool: Any) -> dict[str, Any]:
    """For each test file its tests' seconds and lines; what is stored and still true is not run again."""
    store = BUILD / "recorded.json"
    records: dict[str, Any] = json.loads(store.read_text()) if store.exists() else {}
    files = [file for room in ROOMS for file in sorted((HERE / "tests" / room).rglob("test_*.py"))]
    names = [*(str(file.relative_to(HERE)) for file in files), *MORE]
    true = {n for n in names if n in records and all(digest(HERE, p) == d for p, d in records[n]["digests"].items())}
    jobs = [(name, [[*QUICK, name]], 1800, None) for name in names if name not in true]
    for name, outcome, output, record in pool.imap_unordered(run, jobs):
        if outcome not in ALIVE:
            raise SystemExit(f"{name} fails without any change:\n" + "\n".join(output))
        records[name] = record
        store.write_text(json.dumps(records))
        print(f"recorded {name}: {sum(record['seconds'].values()):.1f} s", flush=True)
    return {name: records[name] for name in names}


def tests_of(mutant: Mutant, records: dict[str, Any]) -> tuple[list[list[str]], float]:
    """The tests that run the changed line, by file, the nearest and among them the cheapest first, and a time limit."""
    module, room = f"test_{Path(mutant.path).stem}", Path(mutant.path).parts[2]
    candidates: list[tuple[bool, bool, float, str, str]] = []
    for file, record in records.items():
        lines, seconds = record["lines"].get(mutant.path, {}), record["seconds"]
        runs = [test for test, rows in lines.items() if mutant.lines is None or not set(rows).isdisjoint(mutant.lines)]
        if "*" in runs:
            runs, seconds = [file], {file: sum(seconds.values())}
        far, farther = Path(file).stem != module, Path(file).parts[1] != room
        candidates += [(far, farther, seconds[test], file, test) for test in runs]
    tests, total = dict[str, list[str]](), 0.0
    for _, _, cost, file, test in sorted(candidates):
        if total + cost <= BUDGET or not tests:
            tests.setdefault(file, [*QUICK]).append(test)
            total += cost
    # Slow tests only of the file named after the module: they may run the line in processes that they start.
    near = [file for file in records if Path(file).stem == module]
    return [*tests.values(), *(["-m", "not shared_data", file] for file in near)], 300 + 5 * total


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--count", type=int, default=300, help="number of mutants")
    parser.add_argument("--workers", type=int, default=2, help="processes that run tests")
    parser.add_argument("--survivors", action="store_true", help="only those that have not been killed before")
    options = parser.parse_args()
    os.environ["OMP_NUM_THREADS"] = "1"
    sys.path.insert(0, str(HERE / "src"))
    # Imported once for all processes; recollect itself is forgotten again, since each process imports its copy.
    importlib.import_module("recollect.common.machine").fix_torchvision()
    for name in ("pytest", "hypothesis", "timm", "faiss", "pytorch_metric_learning", "recollect.training.trainer"):
        importlib.import_module(name)
    modules = [sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "recollect"]
    BUILD.mkdir(parents=True, exist_ok=True)
    store = BUILD / "outcomes.json"
    before: dict[str, str] = json.loads(store.read_text()) if store.exists() else {}
    mutants, equivalent = sample(options.count), listed()
    again = [one for one in mutants if not options.survivors or before.get(one.key, ALIVE[0]) in ALIVE]
    again = sorted((one for one in again if one.key not in equivalent), key=lambda one: one.key in before)
    try:
        with multiprocessing.get_context("fork").Pool(options.workers) as pool:
            records = recorded(pool)
            planned = [(one, *tests_of(one, records), one) for one in again]
            for one, outcome, output, _ in pool.imap_unordered(run, planned):
                before[one.key] = outcome
                store.write_text(json.dumps(before))
                failed = next((line for line in output if line.startswith(("FAILED", "ERROR"))), "")
                print(f"{one.key} {outcome:8} {one.path} {failed if outcome == 'killed' else ''}", flush=True)
    finally:
        shutil.rmtree(TREES, ignore_errors=True)
    del modules
    report([one for one in mutants if one.key not in equivalent], before, mutants)


def listed() -> set[str]:
    """Keys of the mutants that no test can notice."""
    return {line.split()[0] for line in EQUIVALENT.read_text("utf-8").splitlines() if line and line[0] != "#"}


def report(tried: list[Mutant], outcomes: dict[str, str], mutants: list[Mutant]) -> None:
    """The table by room, then each survivor as a diff; also in ``build/mutants/report.txt``."""
    lines = [f"{'room':12}{'mutants':>9}{'equivalent':>12}{'killed':>8}{'timeout':>9}{'survived':>10}{'score':>9}"]
    for room in (*ROOMS, ""):
        here, all_of_them = ([one for one in some if f"/recollect/{room}" in one.path] for some in (tried, mutants))
        count = Counter(outcomes[one.key] for one in here)
        dead, alive = count["killed"] + count["timeout"], count["survived"] + count["no test"]
        numbers = (
            f"{len(all_of_them):9}{len(all_of_them) - len(here):12}{count['killed']:8}{count['timeout']:9}{alive:10}"
        )
        lines.append(f"{room or 'all':12}{numbers}{dead / max(dead + alive, 1):9.1%}")
    left = [one for one in tried if outcomes[one.key] in ALIVE]
    lines += [f"\n{outcomes[one.key]}:\n{one.diff()}" for one in sorted(left, key=lambda one: (one.path, one.start))]
    (BUILD / "report.txt").write_text("\n".join(lines), "utf-8")
    print("\n".join(lines))


if __name__ == "__main__":
    main()
