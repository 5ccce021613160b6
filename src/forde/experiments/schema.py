"""The schema of result files (`schema.json`, which ships with the package), and a check for the part of JSON Schema
that it uses: type, const, enum, required, properties, additionalProperties, items, minimum and $ref.
"""

from __future__ import annotations

import json
from functools import lru_cache
from importlib.resources import files
from typing import Any

TYPES: dict[str, tuple[type, ...]] = {
    "object": (dict,), "array": (list,), "string": (str,), "integer": (int,), "number": (int, float),
    "boolean": (bool,), "null": (type(None),),
}  # fmt: skip


@lru_cache(maxsize=1)
def schema() -> dict[str, Any]:
    """The schema as a dictionary.

    >>> schema()["title"]
    'Result of one cell of forde reproduce'
    """
    found: dict[str, Any] = json.loads(files("forde.experiments").joinpath("schema.json").read_text(encoding="utf-8"))
    return found


def problem_with(value: Any, rules: dict[str, Any] | None = None, where: str = "") -> str | None:
    """The first thing that does not fit, with its place; None where all fits.

    >>> problem_with({"a": 1}, {"type": "object", "properties": {"a": {"type": "string"}}})
    "'a' is 1, but string was expected"
    """
    rules = schema() if rules is None else rules
    if "$ref" in rules:
        rules = schema()["$defs"][rules["$ref"].rpartition("/")[2]]
    name = f"'{where}'" if where else "the whole"
    if "type" in rules and not _is_one_of(value, rules["type"]):
        expected = rules["type"] if isinstance(rules["type"], str) else " or ".join(rules["type"])
        return f"{name} is {json.dumps(value, default=str)[:60]}, but {expected} was expected"
    if "const" in rules and value != rules["const"]:
        return f"{name} is {value!r}, but {rules['const']!r} was expected"
    if "enum" in rules and value not in rules["enum"]:
        return f"{name} is {value!r}, but one of {', '.join(map(str, rules['enum']))} was expected"
    if "minimum" in rules and value < rules["minimum"]:
        return f"{name} is {value!r}, but at least {rules['minimum']} was expected"
    if isinstance(value, list):
        parts = ((item, rules.get("items", {}), f"{where}[{index}]") for index, item in enumerate(value))
        return next((found for part in parts if (found := problem_with(*part)) is not None), None)
    return _problem_inside(value, rules, where) if isinstance(value, dict) else None


def _problem_inside(value: dict[str, Any], rules: dict[str, Any], where: str) -> str | None:
    own, others = rules.get("properties", {}), rules.get("additionalProperties", {})
    for key in rules.get("required", ()):
        if key not in value:
            return f"{f'{where!r}' if where else 'the whole'} has no '{key}'"
    for key, item in value.items():
        inside = f"{where}.{key}" if where else str(key)
        if key not in own and others is False:
            return f"'{inside}' is not known"
        found = problem_with(item, own.get(key, others), inside)
        if found is not None:
            return found
    return None


def _is_one_of(value: Any, names: str | list[str]) -> bool:
    wanted = [names] if isinstance(names, str) else names
    if isinstance(value, bool):
        return "boolean" in wanted
    return any(isinstance(value, TYPES[name]) for name in wanted)
