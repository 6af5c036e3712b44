"""Every worked example in docs/formats is built again and compared byte by byte.

How to write one. A page has, for each example, two fenced blocks with the same label, in this
order; the label comes after the language:

    ```python a-label
    from octavo.protocol.entry import ...
    example = pack_entry(...)            # bytes
    assert unpack_entry(..., example)    # as many checks of the reading side as are useful
    ```

    ```hex a-label
    00000000 0000002a   # ledger id 42: all after a hash is a comment
    68656c6c 6f         # the payload; blanks and line breaks mean nothing
    ```

The test runs the Python block and compares `example` with the hex block. A new page is found by
itself. Code in an example may use every installed package, but no files, clocks or randomness.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple

import pytest

PAGES = sorted((Path(__file__).resolve().parents[2] / "docs/formats").glob("*.md"))
FENCE = re.compile(r"^```(python|hex)[ \t]+(\S+)[ \t]*\n(.*?)^```[ \t]*$", re.MULTILINE | re.DOTALL)
UNLABELLED = re.compile(r"^```hex[ \t]*$", re.MULTILINE)


class Example(NamedTuple):
    """One worked example: how to build it, and the expected bytes."""

    page: str
    label: str
    code: str
    wanted: bytes


def bytes_of(block: str) -> bytes:
    return bytes.fromhex("".join(line.split("#")[0] for line in block.splitlines()))


def examples_of(page: str, text: str) -> list[Example]:
    """Return the examples of a page. Raises `ValueError` where blocks do not pair up."""
    if UNLABELLED.search(text):
        raise ValueError(f"{page}: a hex block has no label")
    code: dict[str, str] = {}
    found: list[Example] = []
    for language, label, block in FENCE.findall(text):
        if language == "python":
            if label in code:
                raise ValueError(f"{page}: two python blocks are labelled {label}")
            code[label] = block
        elif label in code:
            found.append(Example(page, label, code[label], bytes_of(block)))
        else:
            raise ValueError(f"{page}: no python block before the hex block {label}")
    if unused := code.keys() - {example.label for example in found}:
        raise ValueError(f"{page}: no hex block for {sorted(unused)}")
    return found


EXAMPLES = [example for page in PAGES for example in examples_of(page.name, page.read_text())]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)
def test_every_page_has_a_worked_example(page: Path) -> None:
    assert examples_of(page.name, page.read_text())


@pytest.mark.parametrize("example", EXAMPLES, ids=lambda one: f"{one.page}:{one.label}")
def test_the_example_is_what_the_code_makes(example: Example) -> None:
    names: dict[str, object] = {}
    exec(compile(example.code, f"{example.page}:{example.label}", "exec"), names)
    assert "example" in names, "the python block sets `example`"
    made = bytes(names["example"])  # type: ignore[call-overload]
    assert made.hex(" ", -4) == example.wanted.hex(" ", -4)


GOOD = "```python one\nexample = b'a'\n```\n\n```hex one\n61 # a\n```\n"


def test_the_mechanism_sees_what_is_wrong() -> None:
    assert examples_of("p", GOOD) == [Example("p", "one", "example = b'a'\n", b"a")]
    for wrong in (
        "```hex\n61\n```\n",
        GOOD.replace("python one", "python two"),
        GOOD.replace("hex one", "text one"),
        GOOD + GOOD,
        GOOD.replace("61", "6"),
    ):
        with pytest.raises(ValueError):  # noqa: PT011
            examples_of("p", wrong)
