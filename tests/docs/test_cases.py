"""The table of cases in tests/README.md: every test that it names is there, and does what it is named for."""

import ast
import re
from pathlib import Path

import pytest
from tests.scenarios.language import load

TESTS = Path(__file__).parent.parent
ROWS = {
    number: set(re.findall(r"`([^`]+)`", tests))
    for number, tests in re.findall(
        r"^\| (\d+a?) \| [^|]+ \| (.+) \|$", (TESTS / "README.md").read_text(), re.MULTILINE
    )
}
HISTORIES = {f"{scenario.file}: {scenario.title}": scenario for scenario in load(TESTS / "scenarios")}


def functions_in(path: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_the_table_has_the_cases_that_concern_what_there_is() -> None:
    numbers = [*range(1, 36), *range(37, 43), 44, 48, 49, 50]
    assert set(ROWS) == {str(number) for number in numbers} | {"21a"}


@pytest.mark.parametrize("number", ROWS)
def test_every_test_of_a_case_exists(number: str) -> None:
    assert ROWS[number]
    for name in ROWS[number]:
        path, is_function, function = name.partition("::")
        if is_function:
            assert function.startswith("test_") and function in functions_in(TESTS / path), name
        else:
            assert f"case {number}" in HISTORIES[name].source, name


def test_every_history_that_tells_a_case_is_in_its_row() -> None:
    for name, scenario in HISTORIES.items():
        for number in re.findall(r"case (\d+a?)", scenario.source):
            assert name in ROWS[number], (number, name)
