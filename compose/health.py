"""The image's health check: asks HEALTH_URL, tells what it heard, exit code 0 on status 200.

Standard library only and started with `-I -S`: it runs every few seconds in every container.
"""

import os
import sys
from http.client import HTTPConnection, HTTPException
from urllib.parse import urlsplit

TIMEOUT_S = 8.0


def main() -> int:
    """Ask once."""
    url = urlsplit(os.environ["HEALTH_URL"])
    connection = HTTPConnection(url.hostname or "127.0.0.1", url.port, timeout=TIMEOUT_S)
    try:
        connection.request("GET", url.path)
        answer = connection.getresponse()
        sys.stdout.write(f"{answer.status} {answer.read(2000).decode(errors='replace')}\n")
    except (OSError, HTTPException) as error:
        sys.stdout.write(f"{url.geturl()}: {error}\n")
        return 1
    return 0 if answer.status == 200 else 1


if __name__ == "__main__":
    sys.exit(main())
