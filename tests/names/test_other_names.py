"""Instances, notes, reasons, lease ids, labels, workspaces, idempotency keys, and what collides."""

import unicodedata
from collections.abc import Callable
from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseplane.model import Access
from leaseplane.resources import (
    SHARED_READ_STANDARD,
    NameRefused,
    SemanticsClass,
    check_idempotency_key,
    check_instance,
    check_label,
    check_lease_id,
    check_note,
    check_reason,
    check_resource,
    check_workspace,
    class_of,
    collides,
)


def accepted(check: Callable[[str], None], text: str) -> bool:
    try:
        check(text)
    except NameRefused:
        return False
    return True


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=70))
def test_an_instance_is_a_short_plain_name_in_which_a_colon_is_nothing_special(text: str) -> None:
    # A scheme that any rest may follow: what is left are the rules for every name.
    as_name = len(text) <= 64 and text[:1] not in ("", " ") and accepted(check_resource, f"x:{text}")
    # The one rule that a first character could escape behind a colon: nothing composes with one.
    assert accepted(check_instance, text) == as_name


@pytest.mark.parametrize("text", ["p", "p.1", "a b", "é" * 64, "x" * 64, "worker:3"])
def test_instances(text: str) -> None:
    check_instance(text)


@pytest.mark.parametrize("text", ["", "x" * 65, " p", "p\n", "e\u0301", "p\u200d", "\ud800", "a\u2003b"])
def test_no_instances(text: str) -> None:
    with pytest.raises(NameRefused) as refused:
        check_instance(text)
    assert refused.value.field == "instance"


def test_an_instance_has_a_canonical_spelling() -> None:
    with pytest.raises(NameRefused) as refused:
        check_instance(" worke\u0301r\n")
    assert refused.value.canonical == "work\u00e9r"


@settings(deadline=None)
@given(st.text(st.characters(codec=None), max_size=220))
def test_a_note_is_any_text_without_controls(text: str) -> None:
    bad = any(unicodedata.category(c) in ("Cc", "Cs") for c in text)
    assert accepted(check_note, text) == (not bad and len(text) <= 200)
    assert accepted(check_reason, text) == (not bad and 1 <= len(text) <= 200)


def test_a_note_may_hold_what_a_name_may_not() -> None:
    for text in ("", " x ", "e\u0301", "\U0001f469\u200d\U0001f4bb \u2764\ufe0f", "\u05d0\u200f!"):
        check_note(text)


@pytest.mark.parametrize(
    ("check", "field", "chars_min", "chars_max"),
    [
        (check_note, "note", 0, 200),
        (check_reason, "reason", 1, 200),
        (check_lease_id, "leaseId", 1, 64),
        (check_label, "label", 0, 100),
        (check_idempotency_key, "Idempotency-Key", 1, 255),
        (check_instance, "instance", 1, 64),
        (check_workspace, "workspace", 1, 63),
    ],
)
def test_bounds(check: Callable[[str], None], field: str, chars_min: int, chars_max: int) -> None:
    check("x" * chars_min if chars_min else "")
    check("x" * chars_max)
    for text in ["x" * (chars_max + 1), "a\x07b", "a\x9fb", "a\udfffb", *([""] if chars_min else [])]:
        with pytest.raises(NameRefused) as refused:
            check(text)
        assert refused.value.field == field


def test_workspaces() -> None:
    for name in ("local", "a", "7", "a-b", "a--b", "x" * 63):
        check_workspace(name)
    for name in ("-a", "a-", "-", "A", "a_b", "a.b", "a b", "a\n", "é", "\u0661"):
        with pytest.raises(NameRefused):
            check_workspace(name)
    with pytest.raises(NameRefused) as refused:
        check_workspace("Acme")
    assert refused.value.canonical == "acme"


def test_idempotency_keys_are_printable_ascii() -> None:
    check_idempotency_key('"8e03978e-40d5-43e8-bc93-6894a57f9324"')
    check_idempotency_key("a b~!")
    for key in ("a\tb", "é", "a\n", "\x7f"):
        with pytest.raises(NameRefused):
            check_idempotency_key(key)


def test_the_class_follows_from_the_scheme() -> None:
    shared = ("file:a", "doc:a", "dataset:a", "table:a", "page:a", "api:a")
    exclusive = ("lock:a", "a", "file", "doc", "unknown:a", "files:a", "x:file:a")
    table: dict[str, SemanticsClass] = dict.fromkeys(SHARED_READ_STANDARD, "shared_read")
    assert {class_of(name, table) for name in shared} == {"shared_read"}
    assert {class_of(name, table) for name in exclusive} == {"exclusive"}
    assert class_of("wiki:a", {"wiki": "shared_read"}) == "shared_read"
    assert class_of("file:a", {}) == "exclusive"


def test_only_two_reads_of_what_may_be_read_together_do_not_collide() -> None:
    classes: tuple[SemanticsClass, ...] = ("exclusive", "shared_read")
    accesses: tuple[Access, ...] = ("read", "write", "delete")
    apart = {t for t in product(classes, accesses, accesses) if not collides(*t)}
    assert apart == {("shared_read", "read", "read")}
