import pickle
import traceback
from pathlib import Path

import pytest

from leaseplane.secret import Secret
from leaseplane.settings import SETTINGS, SettingRefused, Settings, read_settings, render_settings

DOCS = Path(__file__).parent.parent.parent / "docs" / "settings.md"
DID = "did:key:z6MkhaXgBZDvotDkL5257faiztiGiC2QtKLGpbnnEGta2doK"
HOME = {"HOME": "/home/a"}


def read(**environ: str) -> Settings:
    return read_settings({**HOME, **{f"LEASEPLANE_{name}": text for name, text in environ.items()}})


def test_nothing_set_means_the_defaults() -> None:
    settings = read()
    assert settings == Settings(
        data=settings.data,
        url=None,
        api_key=None,
        agent="default",
        instance=None,
        held=(),
        held_leases=(),
        lease_ms=None,
        shared_read=None,
        hold_ms_max=None,
        allow_hosts=(),
        allow_origins=(),
        host="127.0.0.1",
        port=7411,
        log="info",
        public_url=None,
    )
    assert settings.data.is_relative_to("/home/a")


def test_what_is_empty_counts_as_not_set() -> None:
    assert read(**{row.variable.removeprefix("LEASEPLANE_"): "" for row in SETTINGS}) == read()


def test_everything_can_be_set() -> None:
    assert read(
        DATA="/srv/plane",
        URL="https://plane.example/",
        API_KEY="lp_abc",
        AGENT="build-1",
        INSTANCE="p.1",
        HELD="lock:a, b\nfile:c",
        HELD_LEASES="7 lease-7\n8 lease-8",
        LEASE_MS="1000",
        SHARED_READ="file, wiki,file",
        HOLD_MS_MAX="60000",
        ALLOW_HOSTS="Plane.example,[::1]:7411",
        ALLOW_ORIGINS="https://Console.example",
        HOST="::1",
        PORT="0",
        LOG="DEBUG",
        PUBLIC_URL="https://plane.example/team",
    ) == Settings(
        data=Path("/srv/plane"),
        url="https://plane.example",
        api_key=Secret("lp_abc"),
        agent="build-1",
        instance="p.1",
        held=("lock:a, b", "file:c"),
        held_leases=((7, "lease-7"), (8, "lease-8")),
        lease_ms=1_000,
        shared_read=("file", "wiki"),
        hold_ms_max=60_000,
        allow_hosts=("plane.example", "[::1]:7411"),
        allow_origins=("https://console.example",),
        host="::1",
        port=0,
        log="debug",
        public_url="https://plane.example/team",
    )


@pytest.mark.parametrize(
    ("name", "text"),
    [
        *(
            ("LEASE_MS", text)
            for text in ("999", "3600001", "3e4", "30_000", "+5000", " 5000", "٣٠٠٠", "30s")
        ),
        *(("PORT", text) for text in ("65536", "-1", "http")),
        *(("HOLD_MS_MAX", text) for text in ("999", "-1", "99999999999999999999")),
        *(("URL", text) for text in ("plane.example", "ftp://a", "http://", "http://u:p@a", "http://a?b=c")),
        *(("URL", text) for text in ("http://a:b", "http://a#b", "http://a b", "http://[::1")),
        ("PUBLIC_URL", "plane"),
        *(("AGENT", text) for text in ("../x", ".hidden", "a/b", "a" * 65, "ä", "a\n")),
        *(("AGENT", text) for text in ("a:b", "did:", "did:key:z6Mk", "did:key:agent", "did:web:a/b")),
        *(("INSTANCE", text) for text in ("a" * 65, "a\tb")),
        *(("SHARED_READ", text) for text in ("File", "1a", "a b")),
        *(("ALLOW_HOSTS", text) for text in ("http://a", "a/b", "*")),
        *(("ALLOW_ORIGINS", text) for text in ("a", "https://a/b", "*")),
        ("HOST", "a b"),
        ("LOG", "loud"),
        ("DATA", "a\0b"),
    ],
)
def test_what_cannot_be_is_refused_naming_variable_and_value(name: str, text: str) -> None:
    with pytest.raises(SettingRefused) as caught:
        read(**{name: text})
    assert str(caught.value).startswith(f"LEASEPLANE_{name}=")
    assert " must " in str(caught.value)


@pytest.mark.parametrize("agent", ["a", "a" * 64, "Build-1.x_y", "did:web:example.com", DID])
def test_an_agent_is_a_name_or_a_did(agent: str) -> None:
    assert read(AGENT=agent).agent == agent


def test_a_cap_below_one_lease_is_refused() -> None:
    assert read(HOLD_MS_MAX="60000", LEASE_MS="60000").hold_ms_max == 60_000
    with pytest.raises(SettingRefused, match="less than one lease"):
        read(HOLD_MS_MAX="59999", LEASE_MS="60000")


def test_a_comma_alone_makes_every_scheme_exclusive() -> None:
    assert read(SHARED_READ=",").shared_read == ()


def test_a_port_that_kubernetes_set_is_not_meant() -> None:
    assert read(PORT="tcp://10.0.0.7:7411").port == 7411


def test_a_home_folder_is_found_without_a_shell() -> None:
    assert read(DATA="~/plane").data == Path("/home/a/plane")


def test_a_secret_shows_itself_only_when_asked_to() -> None:
    settings = read(API_KEY="lp_hush")
    assert settings.api_key is not None
    assert settings.api_key.reveal() == "lp_hush"
    assert "hush" not in f"{settings} {settings!r} {settings.api_key} {settings.api_key!r}"
    with pytest.raises(TypeError):
        pickle.dumps(settings)


@pytest.mark.parametrize("text", ["lp_hush\n", "lp hush", "hush" * 200, "hüsh lp_hush"])
def test_a_refused_secret_is_not_repeated(text: str) -> None:
    with pytest.raises(SettingRefused) as caught:
        read(API_KEY=text)
    # As a program would show it that gives up on it; the frames of this test itself hold the text.
    assert "hush" not in "".join(traceback.format_exception(caught.value, limit=-2))


def test_the_page_in_the_docs_is_fresh() -> None:
    assert DOCS.read_text() == render_settings(), "run: python -m leaseplane.settings > docs/settings.md"


def test_every_row_stands_in_the_page() -> None:
    page = render_settings()
    assert all(f"| `{row.variable}` |" in page for row in SETTINGS)


@pytest.mark.parametrize("variable", ["LEASEPLANE_URL", "LEASEPLANE_PUBLIC_URL", "LEASEPLANE_ALLOW_ORIGINS"])
def test_a_password_in_a_url_is_not_repeated(variable: str) -> None:
    with pytest.raises(SettingRefused) as refused:
        read_settings({variable: "https://ada:hunter2@plane.example:7411"})
    assert "hunter2" not in str(refused.value) and "plane.example" in str(refused.value)


@pytest.mark.parametrize(
    ("held", "leases"),
    [("lock:a", "7 lease-7\n8 lease-8"), ("", "7 lease-7"), ("lock:a", "lease-7"), ("lock:a", "0 lease-7")],
)
def test_what_is_held_outside_has_a_lease_for_each_line(held: str, leases: str) -> None:
    with pytest.raises(SettingRefused, match="LEASEPLANE_HELD_LEASES"):
        read_settings({"HOME": "/", "LEASEPLANE_HELD": held, "LEASEPLANE_HELD_LEASES": leases})
