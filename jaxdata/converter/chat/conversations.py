"""Conversations, in all forms that records use."""

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Self

from jaxdata.converter.inputs.parsing import BadRecord, field_of, text_of
from jaxdata.converter.tasks import Record

# Roles of ShareGPT and its kin -> as chat templates call them.
_ROLES = {
    **dict.fromkeys(("human", "prompter"), "user"),
    **dict.fromkeys(("gpt", "chatgpt", "bot", "function_call"), "assistant"),
    **dict.fromkeys(("observation", "function_response"), "tool"),
}
_ROLE_KEYS, _CONTENT_KEYS = ("role", "from"), ("content", "value", "text")
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
    def of(cls, turns: Sequence[tuple[str, str, bool]]) -> Self:
        """Make one of turns: role, content, and whether it has loss."""
        messages = [{"role": role, "content": text} for role, text, _ in turns]
        return cls(messages, [loss for _, _, loss in turns])

    def followed_by(self, answer: Self) -> Self:
        """A prompt, which has no loss, and an answer to it."""
        losses = [False] * len(self.losses) + answer.losses
        return replace(self, messages=self.messages + answer.messages, losses=losses)

    def cleaned(self, clean: Callable[[str], str]) -> Self:
        """The same conversation, with the content of every message cleaned."""
        messages = [{**m, "content": m["content"] and clean(m["content"])} for m in self.messages]
        return replace(self, messages=messages)

    def contents(self) -> list[str]:
        """The texts of its messages."""
        return [message["content"] for message in self.messages if message["content"]]

    def last_only(self) -> Self:
        """The same, with loss on the last message alone."""
        return replace(self, losses=[False] * (len(self.losses) - 1) + self.losses[-1:])

    def strings(self) -> list[str]:
        """Every text in its messages and variables."""
        return list(_strings([self.messages, self.variables]))


def conversation_of(record: Record, key: str) -> Conversation:
    """Read the conversation in a field, with the "system" prompt and "tools" beside it.

    Messages without roles are the user's and the assistant's in turn. Each has its text under
    "content", "value" or "text".

    Raises:
        BadRecord: it is not a conversation, or a message has no role or no text.
    """
    given = field_of(record, key)
    if isinstance(given, list):
        given = [{"content": one} if isinstance(one, str) else one for one in given]
    if not is_messages(given):
        raise BadRecord(f"{key!r} is not a list of messages")
    if not any(key in one for one in given for key in _ROLE_KEYS):
        given = [{"role": _TURNS[n % 2], **one} for n, one in enumerate(given)]
    made = read_messages(given)
    system = record.get("system")
    if isinstance(system, str) and system and made.messages[0]["role"] != "system":
        made = Conversation.of([("system", system, False)]).followed_by(made)
    return replace(made, variables=_tools(record.get("tools")))


def is_messages(value: Any) -> bool:
    """Tell whether a value is a list of objects, at least one."""
    return isinstance(value, list) and bool(value) and all(isinstance(v, Mapping) for v in value)


def read_messages(given: Sequence[Mapping[str, Any]]) -> Conversation:
    """Return messages in one form, and which have loss; raises BadRecord."""
    messages = [_message(one) for one in given]
    weights = [next((one[key] for key in _WEIGHT_KEYS if key in one), 1) for one in given]
    pairs = zip(messages, weights, strict=True)
    return Conversation(messages, [m["role"] == "assistant" and bool(w) for m, w in pairs])


def _message(given: Mapping[str, Any]) -> dict[str, Any]:
    role_key = next((key for key in _ROLE_KEYS if key in given), None)
    content_key = next((key for key in _CONTENT_KEYS if key in given), "content")
    content = given.get(content_key)
    if role_key is None or (content is None and not given.get("tool_calls")):
        lacks = "role" if role_key is None else "content"
        raise BadRecord(f"a message has no {lacks}", tuple(map(str, given)))
    role, known = text_of(given, role_key), (role_key, content_key, *_WEIGHT_KEYS)
    rest = {key: value for key, value in given.items() if key not in known and value is not None}
    text = None if content is None else _content(content)
    return {"role": _ROLES.get(role, role), "content": text, **rest}


def _content(content: Any) -> str:
    """The text of a message, which may come in parts."""
    if not isinstance(content, str | list):
        raise BadRecord("the content of a message is not text")
    return "".join(map(_part, [content] if isinstance(content, str) else content))


def _part(part: Any) -> str:
    if isinstance(part, str):
        return text_of({"content": part}, "content")
    if not isinstance(part, Mapping) or part.get("type", "text") != "text":
        raise BadRecord("a message holds something that is not text")
    return text_of(part, "text" if "text" in part or "value" not in part else "value")


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
