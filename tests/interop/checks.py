"""A list of checks, printed as they are made."""

from __future__ import annotations


class Checks:
    def __init__(self) -> None:
        self.passed = 0
        self.failed: list[str] = []

    def title(self, text: str) -> None:
        print(f"\n== {text}", flush=True)

    def holds(self, what: str, truth: bool, found: object = "") -> None:
        if truth:
            self.passed += 1
            print(f"  ok    {what}", flush=True)
        else:
            self.failed.append(what)
            print(f"  FAIL  {what}\n        found: {found}", flush=True)

    def equal(self, what: str, found: object, wanted: object) -> None:
        self.holds(what, found == wanted, f"{found!r}, wanted {wanted!r}")

    def contains(self, what: str, text: str, *parts: str) -> None:
        missing = [part for part in parts if part not in text]
        self.holds(what, not missing, f"{missing} not in:\n{text[-2000:]}")
