"""Tables on a terminal: nothing that is copied from one is broken over two lines."""

from hypothesis import given
from hypothesis import strategies as st

from leaseplane.surfaces.cli.table import CUT_CHARS_MIN, GAP, Column, fit, short_times

COLUMNS = (Column("key"), Column("label", "cut"), Column("created", "left out"), Column("state"))
ROW = ("lpk_7rk2m0vq8x4d", "alice's laptop", "2026-11-30", "in use")
WHOLE = sum(map(len, ROW)) + GAP * 3


def shown(width: int) -> list[str] | None:
    fitted = fit(COLUMNS, [ROW], width, len)
    if fitted is None:
        return None
    return [ROW[each.number][: each.width] for each in fitted]


def test_what_there_is_room_for_is_shown_whole() -> None:
    assert shown(WHOLE) == list(ROW)
    assert shown(WHOLE + 50) == list(ROW)


def test_free_text_is_cut_first() -> None:
    assert shown(WHOLE - 1) == [ROW[0], "alice's lapto", *ROW[2:]]


def test_then_what_can_be_done_without_is_left_out() -> None:
    narrow = WHOLE - (len(ROW[1]) - CUT_CHARS_MIN)
    assert shown(narrow) == [ROW[0], "alice's ", *ROW[2:]]
    assert shown(narrow - 1) == [ROW[0], *("alice's laptop", ROW[3])]


def test_what_is_copied_is_never_cut() -> None:
    assert shown(len(ROW[0]) + CUT_CHARS_MIN + len(ROW[3]) + GAP * 2) == [ROW[0], "alice's ", ROW[3]]
    assert shown(len(ROW[0]) + CUT_CHARS_MIN + len(ROW[3]) + GAP * 2 - 1) is None


@given(
    st.lists(
        st.builds(Column, st.text(max_size=9), st.sampled_from(["kept", "cut", "left out"])), min_size=1
    ),
    st.data(),
)
def test_it_fits_or_is_told_otherwise(columns: list[Column], data: st.DataObject) -> None:
    row = st.tuples(*(st.text(max_size=70) for _ in columns))
    rows = data.draw(st.lists(row, max_size=3))
    width = data.draw(st.integers(20, 200))
    fitted = fit(columns, rows, width, len)
    if fitted is None:
        return
    assert sum(each.width for each in fitted) + GAP * (len(fitted) - 1) <= width
    for number, column in enumerate(columns):
        widths = [each.width for each in fitted if each.number == number]
        if column.if_narrow == "kept":
            assert widths == [max(len(column.head), *(len(cells[number]) for cells in rows), 0)]


def test_a_time_is_its_date() -> None:
    assert short_times("revoked 2026-11-30T21:05:55.148Z") == "revoked 2026-11-30"
    assert short_times("release 4.2") == "release 4.2"
