"""What is shipped, and what is installed to run and to test it."""

import ast
import re
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import packages_distributions, requires
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

ROOT = Path(__file__).resolve().parents[2]
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
WANTED = [
    Requirement(text)
    for text in [*PYPROJECT["project"]["dependencies"], *PYPROJECT["dependency-groups"]["dev"]]
    + PYPROJECT["build-system"]["requires"]
]


def pins() -> dict[str, Version]:
    found = {}
    for line in (ROOT / "constraints.txt").read_text().splitlines():
        if line and not line.startswith("#"):
            name, version = re.fullmatch(r"([a-z0-9.-]+)==(\S+)", line).groups()  # type: ignore[union-attr]
            assert name not in found
            found[name] = Version(version)
    return found


def test_every_pin_is_within_the_range_that_users_are_given() -> None:
    pinned = pins()
    for wanted in WANTED:
        assert pinned[canonicalize_name(wanted.name)] in wanted.specifier, wanted


def test_whatever_is_needed_is_pinned() -> None:
    pinned, seen = pins(), set()
    ask = [(wanted.name, frozenset(wanted.extras)) for wanted in WANTED if wanted.name != "hatchling"]
    while ask:
        name, extras = ask.pop()
        if (name, extras) in seen:
            continue
        seen.add((name, extras))
        assert canonicalize_name(name) in pinned, f"{name} is installed, but not pinned in constraints.txt"
        for text in requires(name) or []:
            needed = Requirement(text)
            if needed.marker is None or any(needed.marker.evaluate({"extra": e}) for e in extras | {""}):
                ask.append((needed.name, frozenset(needed.extras)))
    assert len(seen) > len(WANTED)


def test_what_the_package_imports_is_what_it_asks_for() -> None:
    imported = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.split(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                imported.add(node.module.split(".")[0])
    foreign = imported - sys.stdlib_module_names - {"leaseplane"}
    homes = packages_distributions()
    needed = {canonicalize_name(home) for name in foreign for home in homes[name]}
    asked_for = {canonicalize_name(Requirement(text).name) for text in PYPROJECT["project"]["dependencies"]}
    assert needed == asked_for


def files_under(root: Path, folder: str = "leaseplane") -> list[str]:
    return [
        path.relative_to(root).as_posix()
        for path in (root / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]


def test_the_wheel_holds_every_module_the_types_and_the_licence(tmp_path: Path) -> None:
    pytest.importorskip("hatchling")
    subprocess.run(
        [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(tmp_path)],
        cwd=ROOT,
        check=True,
        capture_output=True,
    )
    (wheel,) = tmp_path.glob("*.whl")
    held = set(zipfile.ZipFile(wheel).namelist())
    files = set(files_under(ROOT / "src")) | {f"leaseplane/{name}" for name in files_under(ROOT, "examples")}
    assert "leaseplane/py.typed" in files
    # The demo plays the examples, so they are shipped with it.
    files |= {f"leaseplane/examples/{path.name}" for path in (ROOT / "examples").iterdir() if path.is_file()}
    assert files <= held
    assert [name for name in held if name.endswith("licenses/LICENSE")]
    # Nothing but the package and what describes it.
    assert {name.split("/")[0] for name in held - files} == {f"{wheel.name.rsplit('-', 3)[0]}.dist-info"}
