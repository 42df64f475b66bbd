"""Nothing ambient: who may read the environment, a clock, or chance."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import leaseplane

PACKAGE = Path(leaseplane.__file__).parent

READS_THE_ENVIRONMENT = {"settings.py", "surfaces/cli/program.py"}
READS_A_CLOCK_OR_WAITS = {
    "__main__.py",
    "clock.py",
    # Waits for other processes.
    "store/database.py",
    # Waits for a lock's owner to write its name, and puts a stored time into words.
    "store/folder.py",
    # Tells how long a story took.
    "surfaces/cli/demo.py",
}

ENVIRONMENT = {"environ", "environb", "getenv", "getenvb", "putenv", "unsetenv", "expandvars", "expanduser"}
CHANCE = {"random", "secrets", "uuid"}


def modules(under: str = "") -> list[Path]:
    found = sorted((PACKAGE / under).rglob("*.py"))
    assert found
    return found


def imports(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name.split(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module.split(".")[0]


def names(tree: ast.AST) -> Iterator[str]:
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name("os" | "Path" | "path"), attr=name) | ast.alias(name=name):
                yield name


def where(path: Path) -> str:
    return path.relative_to(PACKAGE).as_posix()


@pytest.mark.parametrize("path", modules(), ids=where)
def test_only_the_settings_read_the_environment(path: Path) -> None:
    if where(path) not in READS_THE_ENVIRONMENT:
        assert not ENVIRONMENT & set(names(ast.parse(path.read_text())))


@pytest.mark.parametrize("path", modules(), ids=where)
def test_only_the_clock_tells_the_time(path: Path) -> None:
    if where(path) not in READS_A_CLOCK_OR_WAITS:
        tree = ast.parse(path.read_text())
        assert "time" not in set(imports(tree))
        assert not {"now", "utcnow", "today"} & set(attributes_of(tree, "datetime"))


def attributes_of(tree: ast.AST, name: str) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute):
            match node.value:
                case ast.Name(id=owner) | ast.Attribute(attr=owner) if owner == name:
                    yield node.attr


@pytest.mark.parametrize("path", modules("authority"), ids=where)
def test_the_rules_know_no_clock_no_chance_and_no_system(path: Path) -> None:
    assert not (CHANCE | {"time", "os"}) & set(imports(ast.parse(path.read_text())))
