"""Ask a running bookie's admin port."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from typing import Any

from octavo.cli.options import BadOption
from octavo.client.trust import context_of
from octavo.credentials import bearer
from octavo.protocol.codes import OctavoError
from octavo.tls.words import why

_TIMEOUT_S = 15.0
_ANSWER_BYTES_MAX = 64 * 1024 * 1024


class AdminRefused(OctavoError):
    name = "admin-refused"


def ask(url: str | None, path: str, *, method: str = "GET") -> Any:
    if not url:
        raise BadOption(
            "which bookie? name its admin port with --url http://host:port (or OCTAVO_ADMIN_URL). "
            "A bookie has one when its setting admin_port is given: "
            "octavo bookie --set admin_port=9181 …"
        )
    base = url if "://" in url else f"http://{url}"
    if not base.startswith(("http://", "https://")):
        raise BadOption(f"--url {url}: write http://host:port")
    try:
        request = urllib.request.Request(base.rstrip("/") + path, method=method, headers=bearer())
        context = context_of(None, None, None)
        with urllib.request.urlopen(request, timeout=_TIMEOUT_S, context=context) as answer:
            return json.loads(answer.read(_ANSWER_BYTES_MAX))
    except urllib.error.HTTPError as error:
        raise AdminRefused(f"{base}{path}: {_reason(error)}") from error
    except (OSError, ValueError) as error:  # URLError and timeouts are OSErrors
        cause = getattr(error, "reason", error)
        told = why(cause if isinstance(cause, BaseException) else error) or cause
        raise AdminRefused(
            f"no answer from {base}: {told}; is the bookie up, and is that its admin_port? (A "
            "bookie of Apache's has none: `octavo bookies` shows which kind it is)"
        ) from error


def _reason(error: urllib.error.HTTPError) -> str:
    try:
        said = json.loads(error.read(_ANSWER_BYTES_MAX))
        if "paths" in said:
            return f"{said['error']}; it answers {', '.join(said['paths'])}"
        return str(said.get("reason") or said["error"])
    except (ValueError, KeyError, TypeError, AttributeError):
        return f"{error.code} {error.reason}; is that a bookie's admin_port?"
