"""The waiting line, as a text."""

import pytest

from leaseplane.surfaces.cli.waiting_line import (
    InTheWay,
    cells_of,
    cut,
    duration,
    ordinal,
    short_did,
    waiting_text,
)

ADA = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"


def told(
    cells_max: int | None = None,
    *,
    position: int = 3,
    holder: str | None = ADA,
    instance: str | None = None,
    note: str | None = "moving the table",
    since_ms: int | None = 1_000,
) -> str:
    in_the_way = InTheWay(position, holder, instance, note, since_ms)
    return waiting_text("lock:deploy/production", in_the_way, 13_999, cells_max)


def test_all_of_it() -> None:
    whole = "3rd in line for lock:deploy/production, held by did:key:z6Mk…2doK for 12 s: moving the table"
    assert told() == whole
    assert told(len(whole)) == whole


def test_what_a_refusal_does_not_say_is_left_out() -> None:
    assert told(holder=None, note=None, since_ms=None) == "3rd in line for lock:deploy/production"
    assert told(note=None, instance="web.1").endswith("held by did:key:z6Mk…2doK (web.1) for 12 s")
    assert told(note=None, since_ms=None).endswith("held by did:key:z6Mk…2doK")


def test_a_clock_that_differs_counts_from_zero() -> None:
    assert told(since_ms=20_000, note=None).endswith("for 0 s")


def test_it_fits_any_width() -> None:
    for cells_max in range(1, 120):
        line = told(cells_max, note="移動中のテーブル " * 5)
        assert cells_of(line) <= cells_max
    assert told(85) == "3rd in line for lock:deploy/production, held by did:key:z6Mk…2doK for 12 s: moving t…"
    # Of a note that would be cut to nothing, nothing is shown.
    assert told(78) == "3rd in line for lock:deploy/production, held by did:key:z6Mk…2doK for 12 s"


def test_a_note_cannot_write_on_the_rest_of_the_line() -> None:
    assert told(note="a\x1b[2K\rb\u202ec\u2066d").endswith(": a[2Kbcd")


@pytest.mark.parametrize(
    ("number", "word"),
    [(1, "1st"), (2, "2nd"), (3, "3rd"), (4, "4th"), (11, "11th"), (12, "12th"), (13, "13th"), (21, "21st")],
)
def test_ordinals(number: int, word: str) -> None:
    assert ordinal(number) == word


@pytest.mark.parametrize(
    ("seconds", "words"), [(0, "0 s"), (59, "59 s"), (60, "1 min 0 s"), (3_725, "1 h 2 min")]
)
def test_durations(seconds: int, words: str) -> None:
    assert duration(seconds) == words


def test_a_short_did_is_whole() -> None:
    assert short_did("did:example:ada") == "did:example:ada"
    assert short_did("did:web:a.very.long.example:agents:ada").endswith("…:ada")


def test_cutting() -> None:
    assert cut("abc", 3) == "abc"
    assert cut("abcd", 3) == "ab…"
    assert cut("日本語", 4) == "日…"
    assert cells_of("e\u0301") == 1
