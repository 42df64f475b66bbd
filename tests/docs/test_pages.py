"""What the pages say is done, and comes out as they say."""

import re
import shutil
from pathlib import Path

import pytest
from tests.docs.output import difference_of_json, difference_of_text
from tests.docs.pages import ROOT, anchors_of, blocks_of, links_of, name_of, pages
from tests.docs.reader import read_along

RUN_ELSEWHERE = {"docs/receipts.md": "tests/receipts/test_docs_receipts.py"}
"""Pages whose blocks need more than a home folder and a server: the test that runs them."""

SHELLS = {"bash", "shell", "console", "zsh", "shell-session"}
PYTHONS = {"python", "py", "python3", "pycon"}
KNOWN = {"sh", "sh serve", "sh make"}

TO_RUN = [
    page
    for page in pages()
    if name_of(page) not in RUN_ELSEWHERE and any(block.info == "sh" for block in blocks_of(page))
]


@pytest.mark.parametrize("page", TO_RUN, ids=name_of)
def test_what_a_page_says_comes_out_so(page: Path, tmp_path: Path) -> None:
    if shutil.which("curl") is None:
        pytest.skip("the pages use curl, which is not installed")
    read_along(blocks_of(page), tmp_path)


def test_the_pages_that_a_newcomer_reads_are_run() -> None:
    read = {"README.md", "docs/start.md", "docs/operating.md", "docs/signed-requests.md"}
    assert read <= {name_of(page) for page in TO_RUN}
    for page, test in RUN_ELSEWHERE.items():
        assert Path(page).name in (ROOT / test).read_text()


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_shell_block_is_one_that_is_run(page: Path) -> None:
    for block in blocks_of(page):
        first = block.info.split(" ")[0]
        assert first not in SHELLS, f"line {block.line}: call it `sh`, so that it is run"
        if first == "sh":
            assert block.info in KNOWN, f"line {block.line}"
        # A prompt would be pasted along with the command.
        assert not re.search(r"^\$ ", block.text, re.MULTILINE), f"line {block.line}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_program_of_a_page_is_one_that_the_page_runs(page: Path) -> None:
    if name_of(page) in RUN_ELSEWHERE:
        return
    blocks = blocks_of(page)
    typed = [line for block in blocks if block.info == "sh" for line in block.text.splitlines()]
    for block in blocks:
        language, _, program = block.info.partition(" ")
        if language in PYTHONS:
            assert language == "python" and program, f"line {block.line}: call it `python NAME.py`"
            assert any(f"python {program}" in line for line in typed), f"line {block.line}: it is never run"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_output_follows_what_prints_it(page: Path) -> None:
    blocks = blocks_of(page)
    for before, block in zip([None, *blocks], blocks, strict=False):
        if block.info.endswith(" output"):
            assert before is not None and before.info == "sh", f"line {block.line}"


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_every_target_of_make_exists(page: Path) -> None:
    makefile = (ROOT / "Makefile").read_text()
    for block in blocks_of(page):
        if block.info == "sh make":
            for line in block.text.splitlines():
                program, target, *_ = line.split("#")[0].split() or ["make", "help"]
                assert program == "make"
                assert re.search(rf"^{target}:", makefile, re.MULTILINE), line


@pytest.mark.parametrize("page", pages(), ids=name_of)
def test_links_lead_somewhere(page: Path) -> None:
    for target in links_of(page):
        if re.match(r"[a-z]+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = (page.parent / path).resolve() if path else page
        assert linked.exists(), f"{target}: there is no {linked}"
        assert ROOT in (linked, *linked.parents), f"{target} leads out of the project"
        if anchor:
            assert anchor in anchors_of(linked), f"{target}: there is no such heading"


def test_every_page_can_be_reached() -> None:
    seen, ask = set(), [ROOT / "README.md"]
    while ask:
        page = ask.pop()
        if page in seen or page.suffix != ".md":
            continue
        seen.add(page)
        ask += [
            (page.parent / target.split("#")[0]).resolve() for target in links_of(page) if ":" not in target
        ]
    assert {name_of(page) for page in pages()} == {name_of(page) for page in seen}


# -- the comparison itself ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ("a\nb\n", "a  \nb", True),
        ("a\n…\nd\n", "a\nb\nc\nd\n", True),
        ("a\n…\nd\n", "a\nd\n", True),
        ("at …: x", "at 7411: x", True),
        ("at …: x", "at 7411: y", False),
        ("a", "a\nb", False),
        ("", "", True),
        ("", "a", False),
    ],
)
def test_text(shown: str, printed: str, same: bool) -> None:
    assert (difference_of_text(shown, printed) is None) == same


@pytest.mark.parametrize(
    ("shown", "printed", "same"),
    [
        ('{"a": 1}', '{"a":1}', True),
        ('{"a": 1}', '{"a":1,"b":2}', False),
        ('{"a": 1, "…": "…"}', '{"a":1,"b":2}', True),
        ('{"a": 1, "b": 2}', '{"a":1}', False),
        ('{"a": true}', '{"a":1}', False),
        ('{"fence": 1}', '{"fence":2}', True),
        ('{"fence": 1}', '{"fence":"2"}', False),
        ('{"position": 1}', '{"position":2}', False),
        ('{"expiresAt": "2027-01-15T08:00:00.000Z"}', '{"expiresAt":"2026-12-31T23:59:59.999Z"}', True),
        ('{"expiresAt": "2027-01-15T08:00:00.000Z"}', '{"expiresAt":"2026-12-31T23:59:59Z"}', False),
        ('{"receipt": "eyJ…"}', '{"receipt":"eyJhbGciOi.x.y"}', True),
        ('{"receipt": "eyJ…"}', '{"receipt":"x"}', False),
        ('["a", "…"]', '["a","b","c"]', True),
        ('["a"]', '["a","b"]', False),
        ('{"a": 1}', "not JSON", False),
    ],
)
def test_json(shown: str, printed: str, same: bool) -> None:
    assert (difference_of_json(shown, printed) is None) == same
