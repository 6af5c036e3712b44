"""An image on a foreign page leases no messages.

`GET …/stream` leases messages. Without TLS, a browser sends neither `Origin` nor `Sec-Fetch-Site`
for an `<img>`, and the messages were leased for no consumer.
"""

from __future__ import annotations

import pytest

from octavo.broker.http.csrf import check_lease
from octavo.broker.http.problems import Problem

FIREFOX = "Mozilla/5.0 (X11; Linux x86_64; rv:140.0) Gecko/20100101 Firefox/140.0"
IMG = "image/avif,image/webp,image/png,image/svg+xml,image/*;q=0.8,*/*;q=0.5"
PAGE = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"
HOST = {"Host": "10.0.0.7:8080"}
ORIGINS = ("https://console.example.com",)


@pytest.mark.parametrize(
    "headers",
    [
        {"User-Agent": FIREFOX, "Accept": IMG},
        {"Accept": IMG},
        {"Accept": PAGE},
        {"Accept": "text/css,*/*;q=0.1"} | {"Referer": "http://evil.example/"},
        {"User-Agent": FIREFOX, "Accept": "text/event-stream"},
        {"User-Agent": "mozilla/4", "Accept": "*/*"},
        {"Accept-Language": "de", "Accept": "application/x-ndjson"},
        {"Referer": "http://evil.example/a"},
        {"Accept": "video/webm,audio/*,*/*;q=0.1"},
        {"Origin": "http://evil.example", "Accept": "text/event-stream"},
        {"Origin": "null"},
        {"Sec-Fetch-Site": "cross-site", "Authorization": "Bearer x"},
        {"Sec-Fetch-Site": "same-site"},
    ],
)
def test_a_browsers_simple_request_leases_nothing(headers: dict[str, str]) -> None:
    with pytest.raises(Problem) as caught:
        check_lease({**HOST, **headers}, ORIGINS)
    assert (caught.value.status, caught.value.code) == (403, "foreign-origin")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"User-Agent": "curl/8.5.0", "Accept": "*/*"},
        {"User-Agent": "curl/8.5.0", "Accept": "application/x-ndjson"},
        {"User-Agent": "Python/3.11 aiohttp/3.13", "Accept": "text/event-stream"},
        {"User-Agent": "Go-http-client/1.1"},
        {"User-Agent": FIREFOX, "Accept": "*/*", "Authorization": "Bearer x"},
        {"User-Agent": FIREFOX, "Accept": IMG, "Sec-Fetch-Site": "same-origin"},
        {"User-Agent": FIREFOX, "Accept": PAGE, "Sec-Fetch-Site": "none"},
        {"User-Agent": FIREFOX, "Accept": "text/event-stream", "Origin": "http://10.0.0.7:8080"},
        {"User-Agent": FIREFOX, "Accept": "text/event-stream", "Origin": ORIGINS[0],
         "Sec-Fetch-Site": "cross-site"},
    ],
)  # fmt: skip
def test_programs_and_our_own_pages_may(headers: dict[str, str]) -> None:
    check_lease({**HOST, **headers}, ORIGINS)
