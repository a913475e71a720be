"""Prints how large the project is: lines by room, modules, long functions, public names, and options.

    python scripts/sizes.py

Lines are those of files, as the formatter leaves them. The core is all but the companions.
"""

from __future__ import annotations

import ast
import sys
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PACKAGE = ROOT / "overlap_train"
COMPANIONS = ("cli", "conv", "models", "monitoring", "parallel", "scheduling", "zero_copy")
LONGEST = 54  # lines of a function that fits on a screen
OPTIONS = {"validation": "ValidationPolicy", "execution": "ExecutionPlan"}


def main() -> int:
    """Print the table; returns 0."""
    modules = sorted(PACKAGE.rglob("*.py"))
    rooms: Counter[str] = Counter()
    for module in modules:
        rooms[module.relative_to(PACKAGE).parts[0].removesuffix(".py")] += lines([module])
    for room, count in rooms.most_common():
        show(f"  {room}{' (companion)' if room in COMPANIONS else ''}", count)
    show("core", sum(count for room, count in rooms.items() if room not in COMPANIONS))
    show("package, Python", lines(modules))
    show("package, native", lines(p for p in (PACKAGE / "conv" / "native").iterdir() if p.is_file()))
    show("tests", lines((ROOT / "tests").rglob("*.py")))
    scripts = [path for path in (ROOT / "scripts").rglob("*") if path.suffix in (".py", ".sh")]
    show("scripts, Python and shell", lines(scripts))
    show("modules", len(modules))
    functions = [found for module in modules for found in long_functions(module)]
    show(f"functions over {LONGEST} lines", len(functions))
    print(*(f"  {name}" for name in functions), sep="\n")
    show("public names", len(public_names(PACKAGE / "__init__.py")))
    for module_name, option in OPTIONS.items():
        show(f"fields of {option}", len(fields(PACKAGE / "options" / f"{module_name}.py", option)))
    return 0


def show(what: str, count: int) -> None:
    """Print a row."""
    print(f"{what:<40} {count:>7,}")


def lines(paths: Iterable[Path]) -> int:
    """Return the lines of files."""
    return sum(path.read_text(encoding="utf-8").count("\n") for path in paths)


def long_functions(module: Path) -> list[str]:
    """Return the functions of a module that do not fit on a screen."""
    functions = [
        node for node in ast.walk(ast.parse(module.read_text())) if isinstance(node, ast.FunctionDef)
    ]
    long = [node for node in functions if (node.end_lineno or 0) - node.lineno >= LONGEST]
    return [f"{module.relative_to(ROOT)}:{node.lineno} {node.name}" for node in long]


def public_names(module: Path) -> list[str]:
    """Return what a module says it exports."""
    for node in ast.parse(module.read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    return []


def fields(module: Path, name: str) -> list[str]:
    """Return the fields of a dataclass."""
    classes = [node for node in ast.parse(module.read_text()).body if isinstance(node, ast.ClassDef)]
    (found,) = (node for node in classes if node.name == name)
    return [ast.unparse(node.target) for node in found.body if isinstance(node, ast.AnnAssign)]


if __name__ == "__main__":
    sys.exit(main())
