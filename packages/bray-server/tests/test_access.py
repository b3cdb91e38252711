"""What tells a request of another site's page, and an address that others reach."""

import pytest

from bray_core.errors import ConfigError
from bray_server.limits.access import check_bind, is_loopback, is_own_name, is_same_origin


@pytest.mark.parametrize("host", ["127.0.0.1", "localhost", "LOCALHOST", "::1", "127.1.2.3"])
def test_loopback_is_open_to_nobody_else(host):
    assert is_loopback(host)
    check_bind(host, has_token=False, cure="")


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "", "0", "192.0.2.1", "a.example", "127.1"])
def test_beyond_it_a_token_or_the_users_word_is_wanted(host):
    with pytest.raises(ConfigError, match=r"--host: whoever reaches .* add a token"):
        check_bind(host, has_token=False, cure="add a token")
    check_bind(host, has_token=True, cure="")
    check_bind(host, has_token=False, asked_for=True, cure="")


@pytest.mark.parametrize(
    ("header", "listening_at", "is_own"),
    [
        ("127.0.0.1:80", "127.0.0.1", True),
        ("LocalHost", "127.0.0.1", True),
        ("[::1]:7390", "127.0.0.1", True),
        ("127.0.0.2:1", "127.0.0.2", True),
        ("", "127.0.0.1", False),
        ("evil.example:80", "127.0.0.1", False),
        ("127.0.0.1.evil.example", "127.0.0.1", False),
        ("192.0.2.1", "127.0.0.1", False),
        ("192.0.2.1:7390", "0.0.0.0", True),
        ("[2001:db8::1]:7390", "::", True),
        ("evil.example", "0.0.0.0", False),
        ("a.example:1", "a.example", True),
    ],
)
def test_a_name_that_only_resolves_to_this_machine_is_not_its_own(header, listening_at, is_own):
    assert is_own_name(header, listening_at) is is_own


@pytest.mark.parametrize(
    ("origin", "site", "is_same"),
    [
        (None, None, True),
        ("http://127.0.0.1:80", "same-origin", True),
        ("https://127.0.0.1:80", None, True),
        ("http://127.0.0.1:81", None, False),
        ("http://evil.example", None, False),
        ("null", None, False),
        ("", None, False),
        ("http://[", None, False),
        (None, "cross-site", False),
        (None, "same-site", False),
    ],
)
def test_another_sites_page_is_told_by_its_origin(origin, site, is_same):
    assert is_same_origin("127.0.0.1:80", origin, site) is is_same
