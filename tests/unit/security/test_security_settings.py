"""Senseless security settings are refused."""

from typing import Any

import pytest

from octavo.security.settings import SecurityConfig, SecurityError

OIDC: dict[str, Any] = {"jwt_issuer": "https://login.example", "jwt_audience": "octavo"}


@pytest.mark.parametrize(
    ("how", "told"),
    [
        ({"certificate_principal": "email"}, "use cn, dn or uri"),
        ({"jwks_url": "https://a/keys"}, "give jwt_issuer too"),
        ({"jwks_url": "https://a/keys", "jwt_issuer": "x"}, "give jwt_audience too"),
        ({"jwt_keys_file": "k", **OIDC, "jwks_url": "https://a/keys"}, "not both"),
        ({"jwt_issuer": "x"}, "give jwks_url or jwt_keys_file too"),
        ({"jwt_keys_file": "k", **OIDC, "jwt_issuer": "octavo"}, "issuer of the cluster's own"),
        ({"jwt_keys_file": "k", **OIDC, "jwt_groups_claim": ""}, "name a claim"),
        *(({**OIDC, "jwks_url": url}, "use https://")
          for url in ("http://login.example/keys", "file:///etc/passwd", "https://", "keys",
                      "http://127.0.0.1.evil.example/k", "http://[::1", "ftp://127.0.0.1/k")),
        ({"verified_max": 0}, "use 1 or more"),
        ({"files_reload_ms": 0}, "use 1 or more"),
        ({"password_checks_waiting_max": 7}, "use 8 or more"),
    ],
)  # fmt: skip
def test_refused_with_what_would_do(how, told):
    with pytest.raises(SecurityError, match=told):
        SecurityConfig(**how)


@pytest.mark.parametrize(
    "url", ["https://a/keys", "http://127.0.0.1:80/k", "http://[::1]/k", "http://localhost/k"]
)
def test_where_keys_may_come_from(url):
    assert SecurityConfig(**{**OIDC, "jwks_url": url}).jwks_url == url
