"""A list of checks, said aloud as they are made."""

from __future__ import annotations


class Checks:
    """Counts what held and what did not."""

    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def title(self, text: str) -> None:
        """What the following checks are about."""
        print(f"\n== {text}", flush=True)

    def holds(self, what: str, truth: bool, found: object = "") -> None:
        """Note that `what` must be true; `found` is shown where it is not."""
        if truth:
            self.passed += 1
            print(f"  ok    {what}", flush=True)
        else:
            self.failed.append(what)
            print(f"  FAIL  {what}\n        found: {found}", flush=True)

    def equal(self, what: str, found: object, wanted: object) -> None:
        """Note that `found` must be `wanted`."""
        self.holds(what, found == wanted, f"{found!r}, wanted {wanted!r}")

    def contains(self, what: str, text: str, *parts: str) -> None:
        """Note that every one of `parts` must stand in `text`."""
        missing = [part for part in parts if part not in text]
        self.holds(what, not missing, f"{missing} not in:\n{text[-2000:]}")
