"""Conversations, in all forms that records use."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from jaxdata.converter.inputs.parsing import BadRecord, field_of, text_of
from jaxdata.converter.tasks.base import Record

# Roles of ShareGPT and its kin -> as chat templates call them.
_ROLES = {
    "human": "user",
    "prompter": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bot": "assistant",
    "function_call": "assistant",
    "observation": "tool",
    "function_response": "tool",
}
_ROLE_KEYS, _CONTENT_KEYS, _TEXT_KEYS = ("role", "from"), ("content", "value"), ("text", "value")
_TURNS = ("user", "assistant")
_WEIGHT_KEYS = ("weight", "loss_weight")
_DEEPEST = 64
_TOO_DEEP = f"messages or 'tools' are nested more than {_DEEPEST} deep"


@dataclass(frozen=True)
class Conversation:
    """Messages as chat templates take them: "role", "content" and the record's other fields."""

    messages: list[dict[str, Any]]
    losses: list[bool]  # for each message, whether the assistant's words in it have loss
    variables: dict[str, Any] = field(default_factory=dict)  # of the template: "tools"

    @classmethod
    def of(cls, turns: Iterable[tuple[str, str, bool]]) -> Conversation:
        """Make one of turns: role, content, and whether it has loss."""
        listed = list(turns)
        messages = [{"role": role, "content": content} for role, content, _ in listed]
        return cls(messages, [loss for _, _, loss in listed])

    def cleaned(self, clean: Callable[[str], str]) -> Conversation:
        """The same conversation, with the content of every message cleaned."""
        messages = [
            {**message, "content": message["content"] and clean(message["content"])}
            for message in self.messages
        ]
        return Conversation(messages, self.losses, self.variables)

    def contents(self) -> list[str]:
        """The texts of its messages."""
        return [message["content"] for message in self.messages if message["content"]]

    def last_only(self) -> Conversation:
        """The same, with loss on the last message alone."""
        silent = [False] * (len(self.losses) - 1)
        return Conversation(self.messages, silent + self.losses[-1:], self.variables)

    def strings(self) -> list[str]:
        """Every text in its messages and variables."""
        return list(_strings([self.messages, self.variables]))


def conversation_of(record: Record, key: str, content_key: str = "") -> Conversation:
    """Read the conversation in a field, with the "system" prompt and "tools" beside it.

    Messages without roles are the user's and the assistant's in turn. Each has its text under
    `content_key`; under "content" or "value" where that is empty.

    Raises:
        BadRecord: it is not a conversation, or a message has no role or no text.
    """
    given = _with_roles(field_of(record, key), content_key)
    if not is_messages(given):
        raise BadRecord(f"{key!r} is not a list of messages")
    messages, losses = read_messages(given)
    system = record.get("system")
    if isinstance(system, str) and system and messages[0]["role"] != "system":
        messages, losses = [{"role": "system", "content": system}, *messages], [False, *losses]
    return Conversation(messages, losses, _tools(record.get("tools")))


def _with_roles(given: Any, content_key: str) -> Any:
    """Messages as objects with a role; given as texts, or without roles, they take turns."""
    if not isinstance(given, list):
        return given
    found = [{"content": one} if isinstance(one, str) else one for one in given]
    if content_key and is_messages(found):
        found = [{**one, "content": one.get(content_key, one.get("content"))} for one in found]
    if is_messages(found) and not any(key in one for one in found for key in _ROLE_KEYS):
        found = [{"role": _TURNS[n % 2], **one} for n, one in enumerate(found)]
    return found


def is_messages(value: Any) -> bool:
    """Tell whether a value is a list of objects, at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def read_messages(given: Sequence[Mapping[str, Any]]) -> tuple[list[dict[str, Any]], list[bool]]:
    """Return messages in one form, and which have loss; raises BadRecord."""
    messages = [_message(one) for one in given]
    weights = [next((one[key] for key in _WEIGHT_KEYS if key in one), 1) for one in given]
    losses = [
        message["role"] == "assistant" and bool(weight)
        for message, weight in zip(messages, weights, strict=True)
    ]
    return messages, losses


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    role_key = _first_of(_ROLE_KEYS, given, "role")
    content_key = _first_of(_CONTENT_KEYS, given, "content")
    role = text_of(given, role_key)
    rest = {
        key: value
        for key, value in given.items()
        if key not in (role_key, content_key, *_WEIGHT_KEYS) and value is not None
    }
    content = given.get(content_key)
    if content is None and "tool_calls" not in rest:
        raise BadRecord("a message has no content")
    if content is not None:
        content = _content(content)
    return {"role": _ROLES.get(role, role), "content": content, **rest}


def _first_of(keys: Sequence[str], given: Mapping[str, Any], what: str) -> str:
    for key in keys:
        if key in given:
            return key
    if what == "content" and given.get("tool_calls"):
        return keys[0]
    raise BadRecord(f"a message has no {what}", tuple(map(str, given)))


def _content(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if isinstance(content, str):
        return text_of({"content": content}, "content")
    if not isinstance(content, list):
        raise BadRecord("the content of a message is not text")
    return "".join(map(_part, content))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return text_of({"content": part}, "content")
    if not isinstance(part, Mapping) or part.get("type", "text") != "text":
        raise BadRecord("a message holds something that is not text")
    key = next((key for key in _TEXT_KEYS if key in part), _TEXT_KEYS[0])
    return text_of(part, key)


def _tools(tools: Any) -> dict[str, Any]:
    """The tools of a record, which may be written as JSON in a string."""
    if isinstance(tools, str):
        try:
            tools = json.loads(tools) if tools.strip() else None
        except ValueError:
            raise BadRecord("'tools' is not JSON") from None
        except RecursionError:
            raise BadRecord(_TOO_DEEP) from None
    return {"tools": tools} if tools else {}


def _strings(value: Any, depth: int = 0) -> Sequence[str]:
    if isinstance(value, str):
        return [value]
    if isinstance(value, Mapping):
        value = list(value.values())
    if not isinstance(value, list):
        return []
    if depth == _DEEPEST:
        raise BadRecord(_TOO_DEEP)
    return [text for one in value for text in _strings(one, depth + 1)]
