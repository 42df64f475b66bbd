"""API keys: their form, their hash, and that nothing shows them."""

import copy
import logging
import os
import pickle
import re
import stat
import threading
import traceback
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from leaseplane.identity.api_keys import (
    API_KEY_PATTERN,
    ApiKeyMalformed,
    KeyHash,
    keep_api_key,
    key_id_of,
    load_key_hash,
    mint_api_key,
)
from leaseplane.secret import Secret
from leaseplane.store.folder import FolderRefused


def a_key() -> str:
    return mint_api_key(os.urandom)[1].reveal()


@settings(deadline=None)
@given(st.binary(min_size=32, max_size=32))
def test_a_key_is_recognised_and_holds_its_id(randomness: bytes) -> None:
    rest = [randomness[:8], randomness[8:]]
    asked: list[int] = []

    def source(size: int) -> bytes:
        asked.append(size)
        return rest.pop(0)

    key_id, key = mint_api_key(source)
    assert sum(asked[1:]) * 8 >= 160
    assert re.fullmatch(API_KEY_PATTERN, key.reveal())
    assert key.reveal().startswith(f"{key_id}_")
    assert key_id_of(key.reveal()) == key_id


def test_keys_differ_in_every_bit_of_their_randomness() -> None:
    base = bytes(32)
    seen = set()
    for bit in range(8 * 24):
        content = bytearray(base)
        content[8 + bit // 8] ^= 1 << bit % 8
        parts = [bytes(content[:8]), bytes(content[8:])]
        seen.add(mint_api_key(lambda _, parts=parts: parts.pop(0))[1].reveal())
    assert len(seen) == 8 * 24


@settings(deadline=None)
@given(st.integers(0, 55), st.characters(min_codepoint=0x20, max_codepoint=0x7E))
def test_one_wrong_character_is_noticed_without_a_look_up(position: int, character: str) -> None:
    key = a_key()
    wrong = key[:position] + character + key[position + 1 :]
    if wrong != key:
        with pytest.raises(ApiKeyMalformed):
            key_id_of(wrong)


def test_two_swapped_characters_are_noticed() -> None:
    key = a_key()
    for position in range(17, len(key) - 1):
        wrong = key[:position] + key[position + 1] + key[position] + key[position + 2 :]
        if wrong != key:
            with pytest.raises(ApiKeyMalformed, match="mistyped"):
                key_id_of(wrong)


def test_the_checksum_is_the_crc_that_is_documented() -> None:
    key = a_key()
    digits = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
    value = 0
    for character in key[-6:]:
        value = value * 62 + digits.index(character)
    assert value == zlib.crc32(key[:-6].encode())


@pytest.mark.parametrize(
    "wrong", ["", "lpk_", "Bearer x", "é" * 56, "lpk_" + "\0" * 52, "x" * 10_000, "\ud800"]
)
def test_what_is_no_key(wrong: str) -> None:
    with pytest.raises(ApiKeyMalformed):
        key_id_of(wrong)


def test_spaces_around_a_key_are_not_part_of_it() -> None:
    for wrong in (a_key() + "\n", " " + a_key()):
        with pytest.raises(ApiKeyMalformed):
            key_id_of(wrong)


def test_no_representation_shows_a_secret(caplog: pytest.LogCaptureFixture) -> None:
    key = a_key()
    secret = Secret(key)
    caplog.set_level(logging.DEBUG)
    logging.getLogger("test").info("made %s %r", secret, [secret])
    shown = [repr(secret), str(secret), f"{secret}", f"{secret:>80}", repr({"k": secret}), caplog.text]
    for wrong in (key[:-1] + "~", key[:-1], key.swapcase()):
        with pytest.raises(ApiKeyMalformed) as refused:
            key_id_of(wrong)
        shown += [*traceback.format_exception(refused.value), repr(refused.value)]
    for text in shown:
        assert key[17:40] not in text
    with pytest.raises(TypeError):
        pickle.dumps(secret)
    with pytest.raises(TypeError):
        copy.deepcopy(secret)
    assert secret.reveal() == key


# -- the keyed hash ----------------------------------------------------------------------------


def test_the_hash_depends_on_key_and_secret() -> None:
    one, other = KeyHash(b"a" * 32), KeyHash(b"b" * 32)
    assert one(b"x") == KeyHash(b"a" * 32)(b"x")
    assert len({one(b"x"), one(b"y"), other(b"x"), other(b"y")}) == 4
    assert one.fingerprint != other.fingerprint
    assert one.fingerprint not in one(b"")
    assert "a" * 8 not in repr(one)


def mode_of(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    folder = tmp_path / "keys"
    folder.mkdir(mode=0o700)
    return folder


def test_the_secret_is_made_once_and_for_its_owner_alone(keys: Path) -> None:
    old = os.umask(0)
    try:
        first = load_key_hash(keys, os.urandom)
    finally:
        os.umask(old)
    assert mode_of(keys / "api-keys.secret") == 0o600
    assert load_key_hash(keys, os.urandom).fingerprint == first.fingerprint
    assert [path.name for path in keys.iterdir()] == ["api-keys.secret"]


def test_what_others_could_read_is_closed(keys: Path) -> None:
    load_key_hash(keys, os.urandom)
    (keys / "api-keys.secret").chmod(0o644)
    load_key_hash(keys, os.urandom)
    assert mode_of(keys / "api-keys.secret") == 0o600


def test_all_who_make_the_secret_at_once_use_the_same(keys: Path) -> None:
    barrier = threading.Barrier(8)
    found: list[bytes] = []

    def load() -> None:
        barrier.wait()
        found.append(load_key_hash(keys, os.urandom).fingerprint)

    threads = [threading.Thread(target=load) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 8
    assert len(set(found)) == 1
    assert [path.name for path in keys.iterdir()] == ["api-keys.secret"]


@pytest.mark.parametrize("content", [b"", b"short", b"x" * 33])
def test_a_damaged_secret_is_refused_and_left_alone(keys: Path, content: bytes) -> None:
    (keys / "api-keys.secret").write_bytes(content)
    with pytest.raises(FolderRefused, match=r"api-keys\.secret"):
        load_key_hash(keys, os.urandom)
    assert (keys / "api-keys.secret").read_bytes() == content


def test_a_kept_key_is_for_its_owner_alone_and_whole(tmp_path: Path) -> None:
    path = tmp_path / "api-key"
    path.write_text("older")
    path.chmod(0o644)
    key = mint_api_key(os.urandom)[1]
    keep_api_key(path, key, os.urandom)
    assert path.read_text() == key.reveal() + "\n"
    assert mode_of(path) == 0o600
    assert [found.name for found in tmp_path.iterdir()] == ["api-key"]


@pytest.mark.parametrize("umask", [0, 0o777])
def test_no_umask_opens_or_closes_a_kept_key(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, umask: int
) -> None:
    fchmod = os.fchmod

    def while_nobody_could_read_it(descriptor: int, mode: int) -> None:
        assert stat.S_IMODE(os.fstat(descriptor).st_mode) & 0o077 == 0
        fchmod(descriptor, mode)

    monkeypatch.setattr(os, "fchmod", while_nobody_could_read_it)
    old = os.umask(umask)
    try:
        keep_api_key(tmp_path / "api-key", Secret(a_key()), os.urandom)
    finally:
        os.umask(old)
    assert mode_of(tmp_path / "api-key") == 0o600


def test_a_key_that_cannot_be_kept_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        keep_api_key(tmp_path / "api-key", Secret(a_key()), os.urandom)
    assert list(tmp_path.iterdir()) == []
