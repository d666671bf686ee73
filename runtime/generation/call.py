"""The arguments of a call for one prompt or several."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypedDict

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import REQUEST_CHECKPOINTS, REQUEST_NAMESPACE_CHARACTERS
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.sampling.checks import integer
from hybridge.runtime.sampling.names import INSTEAD, SAME

Sampling = SamplingParams | Sequence[SamplingParams] | None
Messages = Sequence[Mapping[str, Any]]
# Larger priorities are mistakes: one level equals a thousand steps of waiting.
_MOST_PRIORITY = 1 << 31


class OtherNames(TypedDict, total=False):
    """Names that vLLM has for arguments: the same as max_new_tokens, sampling and prompt."""

    max_tokens: int | None
    sampling_params: Sampling
    prompt_token_ids: Any


class CallOptions(OtherNames, total=False):
    """priority: of all prompts, or a list of one per prompt; lower first, where the settings' policy knows priorities.
    namespace: what was computed is shared with prompts of the same one only."""

    priority: int | Sequence[int]
    namespace: str


@dataclass(frozen=True)
class Call:
    """The options of one call, checked. ``token_ids`` replace the prompt; None: use the prompt."""

    sampling: Sampling
    max_new_tokens: int | None
    token_ids: Any
    priority: int | Sequence[int]
    namespace: str

    def params(self, count: int) -> list[SamplingParams]:
        """The parameters of each of ``count`` prompts; RequestError when ``sampling`` has another length."""
        given: list[Any]
        if self.sampling is None or isinstance(self.sampling, SamplingParams):
            given = [self.sampling or SamplingParams()] * count
        else:
            given = list(self.sampling) if isinstance(self.sampling, Iterable) else [self.sampling]
        if len(given) != count or not all(isinstance(params, SamplingParams) for params in given):
            raise RequestError(
                f"sampling: expected SamplingParams, or a list of {count} of them, found {self.sampling!r}"
            )
        most = self.max_new_tokens
        return given if most is None else [params.with_max_new_tokens(most) for params in given]

    def refuse_token_ids(self) -> None:
        """RequestError when there are token ids: of a call that takes messages."""
        if self.token_ids is not None:
            raise RequestError("prompt_token_ids: expected messages alone, found token ids too: use generate")

    def priorities(self, count: int) -> list[int]:
        """The priorities of ``count`` prompts; RequestError unless there are as many integers."""
        given = list(self.priority) if isinstance(self.priority, (list, tuple)) else [self.priority] * count
        if len(given) != count:
            raise RequestError(f"priority: expected an integer, or a list of {count}, found {len(given)} of them")
        return [checked_priority(value) for value in given]


def call_of(sampling: Sampling, max_new_tokens: int | None, options: Mapping[str, Any]) -> Call:
    """The arguments of a call, ``options`` as in CallOptions; RequestError for unknown names, or two of one meaning."""
    known = {"max_tokens", "sampling_params", "prompt_token_ids", "priority", "namespace"}
    for name in options:
        if name not in known:
            raise RequestError(f"{name}: expected an argument of this call, found none of this name: {_hint(name)}")
    return Call(
        _one_of("sampling", sampling, "sampling_params", options.get("sampling_params")),
        _one_of("max_new_tokens", max_new_tokens, "max_tokens", options.get("max_tokens")),
        options.get("prompt_token_ids"),
        options.get("priority", 0),
        checked_namespace(options.get("namespace", "")),
    )


def split_options(given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """The options of a call, and the variables of a chat template among them."""
    names = CallOptions.__annotations__.keys() | OtherNames.__annotations__.keys()
    options = {name: value for name, value in given.items() if name in names}
    return options, {name: value for name, value in given.items() if name not in names}


def checked_priority(value: object) -> int:
    """RequestError unless the value is an integer of a sensible size."""
    return integer("priority", value, -_MOST_PRIORITY, _MOST_PRIORITY)


def checked_namespace(value: object) -> str:
    """RequestError unless the value is a text that is not too long."""
    if not isinstance(value, str) or len(value) > REQUEST_NAMESPACE_CHARACTERS:
        found = len(value) if isinstance(value, str) else type(value).__name__
        raise RequestError(
            f"namespace: expected a text of at most {REQUEST_NAMESPACE_CHARACTERS} characters, found {found}"
        )
    return value


def checked_checkpoints(value: Iterable[object]) -> tuple[int, ...]:
    """In order, each once; RequestError unless they are few integers."""
    found = tuple(sorted({integer("checkpoints", each, 0) for each in value}))
    if len(found) > REQUEST_CHECKPOINTS:
        raise RequestError(f"checkpoints: expected at most {REQUEST_CHECKPOINTS}, found {len(found)}")
    return found


def conversations_of(messages: object) -> tuple[bool, list[Any]]:
    """Whether ``messages`` are one conversation, and the list of conversations; RequestError when they are none."""
    if isinstance(messages, str):
        return True, [[{"role": "user", "content": messages}]]
    if not isinstance(messages, (list, tuple)):
        raise RequestError(
            "messages: expected text, a list of objects with a role and a content, or a list of such lists, found "
            f"{type(messages).__name__}"
        )
    single = not all(isinstance(item, (list, tuple)) for item in messages) or not messages
    return single, [messages] if single else list(messages)


def _one_of(name: str, value: Any, other: str, found: Any) -> Any:
    if value is not None and found is not None:
        raise RequestError(f"{other}: expected it alone, found {name} too, which means the same: leave one out")
    return found if value is None else value


def _hint(name: str) -> str:
    if name in {field.name for field in fields(SamplingParams)} | SAME.keys():
        return f"pass SamplingParams({name}=...)"
    return f"use {INSTEAD[name]} of SamplingParams" if name in INSTEAD else "leave it out"
