"""Examples in docstrings become code blocks of the reference.

They are paragraphs that begin with `>>>`, which Markdown would show as quotations of quotations.
"""

from __future__ import annotations

import re
from typing import Any

import griffe

EXAMPLE = re.compile(r"^( *)(>>> .*(?:\n(?! *$).*)*)", re.MULTILINE)
DIRECTIVE = re.compile(r" *# doctest:.*$", re.MULTILINE)


class DocstringExamples(griffe.Extension):
    def on_instance(self, *, obj: griffe.Object | griffe.Alias, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = fence_examples(obj.docstring.value)


def fence_examples(text: str) -> str:
    r"""The text with a fence around each example and what it prints.

    >>> fence_examples("One more.\n\n>>> 1 + 1  # doctest: +SKIP\n2\n\nThe end.")
    'One more.\n\n```pycon\n>>> 1 + 1\n2\n```\n\nThe end.'
    """

    def fenced(example: re.Match[str]) -> str:
        indent, code = example.groups()
        code = DIRECTIVE.sub("", code).replace("<BLANKLINE>", "")
        return f"{indent}```pycon\n{indent}{code}\n{indent}```"

    return EXAMPLE.sub(fenced, text)
