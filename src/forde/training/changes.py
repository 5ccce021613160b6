"""What differs between a run and the one that wants to go on with it, in words: a fingerprint tells nobody anything."""

from __future__ import annotations

import re
from typing import Any

from forde.training.configuration import first_difference, short

_PRINT = re.compile(r"(py\d+\.\d+:)?[0-9a-f]{16}")
OTHER_DATA = {
    "data": "other data",
    "validation_data": "other validation data",
    "repel_on_data": "other data to repel on",
}
SAME = "give the same, or another folder"


def first_change(started_with: dict[str, Any], given: dict[str, Any]) -> str | None:
    """What a run was started with that is not given now, and what to do; None where all is the same.

    >>> first_change({"data": {"content": "0123456789abcdef"}}, {"data": {"content": "0123456789abcdee"}})
    'other data: it has changed since (data.content); restore the data, or start again in another folder'
    >>> first_change({"training": {"epochs": 3}}, {"training": {"epochs": 4}})
    'training.epochs = 3, but 4 was given; give the same, or another folder'
    """
    difference = first_difference(started_with, given)
    if difference is None:
        return None
    field, old, new = difference
    if field.startswith("training.method."):
        names = [settings["training"]["method"].get("name") for settings in (started_with, given)]
        if all(names) and names[0] != names[1]:
            return f"the method {short(names[0])}, but {short(names[1])} was given ({field}); {SAME}"
    if not all(isinstance(value, str) and _PRINT.fullmatch(value) for value in (old, new)):
        return f"{field} = {short(old)}, but {short(new)} was given; {SAME}"
    which = OTHER_DATA.get(field.removesuffix(".content"))
    if which is not None and field.endswith(".content"):
        return f"{which}: it has changed since ({field}); restore the data, or start again in another folder"
    if field == "ensemble.architecture":
        layer = _changed_layer(*(settings["ensemble"].get("network") for settings in (started_with, given)))
        return f"a network of other layers ({field}{layer}); give the network as it was, or another folder"
    if "code" in field.split("."):
        return f"other code ({field}), which has changed since; restore the code, or start again in another folder"
    return f"another value of {field}, which has changed since; {SAME}"


def _changed_layer(old: Any, new: Any) -> str:
    """The first layer that differs; nothing where the run did not note its layers."""
    difference = None if old is None else first_difference(old, new)
    if difference is None or "modules." not in difference[0]:
        return ""
    name = difference[0].partition("modules.")[2]
    was, now = ("missing" if value is None else short(value) for value in difference[1:])
    return f": '{name}' was {was}, now it is {now}"
