"""Chat templates: Jinja programs of a checkpoint, run in a process with limits and with transformers' conventions."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.limits import (
    CONVERSATION_BYTES,
    CONVERSATION_MESSAGES,
    TEMPLATE_BYTES,
    TEMPLATE_FILES,
    TEMPLATE_MEMORY,
    TEMPLATE_SECONDS,
)
from hybridge.artifact.untrusted_file import has_file, read_inside
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits
from hybridge.runtime.sandbox.process_pool import ProcessPool
from hybridge.runtime.text.plain_data import PlainData

CHAT_TEMPLATE_FILE, TEMPLATES_FOLDER = "chat_template.jinja", "additional_chat_templates"
Message = Mapping[str, Any]
# Chats that are rendered and tokenized at the same time: each waits for a processor several times, though it needs
# little of it.
TEXT_THREADS = 3
_LIMITS = ProcessLimits(TEMPLATE_SECONDS, TEMPLATE_MEMORY, CONVERSATION_BYTES)


class ChatTemplate:
    """The named templates of a checkpoint (most have only "default") and the special tokens that they may print.

    They run in ``process``, by default new ones, which start with calls of ``render`` and end with ``close`` or with
    this object.
    """

    def __init__(
        self,
        templates: Mapping[str, str],
        special_tokens: Mapping[str, str],
        process: LimitedProcess | None = None,
    ) -> None:
        self._templates = dict(templates)
        self._special_tokens = dict(special_tokens)
        self._process = process or ProcessPool(_LIMITS, TEXT_THREADS)

    def close(self) -> None:
        """End the processes that render; calling it twice is allowed."""
        self._process.close()

    @classmethod
    def from_folder(
        cls,
        folder: Path,
        config: Mapping[str, Any],
        special_tokens: Mapping[str, str],
        process: LimitedProcess | None = None,
    ) -> ChatTemplate:
        """Read chat_template.jinja and additional_chat_templates/NAME.jinja.

        Where there are such files, the chat_template of tokenizer_config.json (``config``) is ignored.
        """
        if templates := _template_files(folder):
            return cls(templates, special_tokens, process)
        return cls(_templates_from_config(config.get("chat_template")), special_tokens, process)

    @property
    def exists(self) -> bool:
        """Whether the checkpoint has a template."""
        return bool(self._templates)

    def render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> str:
        """The text of a conversation, to be encoded without adding special tokens.

        ``tools`` are JSON schemas; ``template`` names one of several templates; ``variables`` reach the template
        as they are (for example enable_thinking=False). RequestError: no template, an empty or malformed
        conversation, one that the template refuses, or one that takes it over the limits of time and memory.
        ArtifactError: the template is not valid Jinja. May be called from several threads.
        """
        return self.rendering(messages, tools, add_generation_prompt, template, **variables)()

    def rendering(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> Callable[[], str]:
        """``render`` in two parts: checks the lists and copies them, but leaves all that they contain to the result,
        which may run in another thread."""
        values = self._values(messages, tools, add_generation_prompt, template, variables)
        return lambda: self._rendered("render", *values())

    def render_with_ends(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None = None,
        add_generation_prompt: bool = True,
        template: str | None = None,
        **variables: Any,
    ) -> tuple[str, tuple[int, ...]]:
        """``render``, and the characters after which its messages end: all of them, and all but the last.

        An end is left out where the text does not begin with these messages as the template renders them alone.
        """
        values = self._values(messages, tools, add_generation_prompt, template, variables)
        ends, _, text = self._rendered("render_with_ends", *values()).partition("\n")
        return text, tuple(map(int, ends.split()))

    def _values(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]] | None,
        add_generation_prompt: bool,
        template: str | None,
        variables: Mapping[str, Any],
    ) -> Callable[[], tuple[str, dict[str, Any]]]:
        """A renderer of the template with the variables, which are copied."""
        source = self.source(template, tools)
        conversation = _short_list("messages", messages)
        if not conversation:
            raise RequestError("messages: expected at least one message, found none")
        functions = None if tools is None else _short_list("tools", tools)

        def copied() -> tuple[str, dict[str, Any]]:
            plain = PlainData()
            return source, {
                "documents": None,
                **self._special_tokens,
                **plain.copy(variables),
                "messages": [_checked_message(message, plain) for message in conversation],
                "tools": plain.copy(functions),
                "add_generation_prompt": add_generation_prompt,
            }

        return copied

    def _rendered(self, job: str, source: str, values: dict[str, Any]) -> str:
        try:
            return self._process.call(job, source, values).decode("utf-8", "surrogatepass")
        except LimitError as error:
            raise RequestError(
                f"the chat template needs {error} for this conversation: shorten it, or use another template"
            ) from None

    def source(self, name: str | None = None, tools: object = None) -> str:
        """The Jinja text that ``render`` uses with these arguments; RequestError when there is none."""
        if not self._templates:
            raise RequestError(
                "the checkpoint has no chat template (chat_template.jinja, or chat_template in tokenizer_config.json): "
                "use a plain prompt"
            )
        requested = name or ("tool_use" if tools is not None and "tool_use" in self._templates else "default")
        if requested not in self._templates:
            raise RequestError(
                f"template: expected one of {', '.join(sorted(self._templates))}, found {requested!r}: name one of them"
            )
        return self._templates[requested]


def _template_files(folder: Path) -> dict[str, str]:
    """Templates by name, of the files that ``from_folder`` names."""
    named = sorted((folder / TEMPLATES_FOLDER).glob("*.jinja"))
    if len(named) > TEMPLATE_FILES:
        raise ArtifactError(
            f"{folder / TEMPLATES_FOLDER}: expected at most {TEMPLATE_FILES} templates, found {len(named)}: "
            "export the checkpoint again"
        )
    files = {path.name.removesuffix(".jinja"): f"{TEMPLATES_FOLDER}/{path.name}" for path in named}
    if has_file(folder, CHAT_TEMPLATE_FILE):
        files.setdefault("default", CHAT_TEMPLATE_FILE)
    return {name: _read(folder, file) for name, file in files.items()}


def _read(folder: Path, file: str) -> str:
    raw = read_inside(folder, file, TEMPLATE_BYTES)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise ArtifactError(
            f"{folder / file}: expected UTF-8 text, found {error.reason}: export the checkpoint again"
        ) from error


def _templates_from_config(value: object) -> dict[str, str]:
    """Templates by name, from a string or a list of {"name", "template"} objects."""
    entries = [] if value is None else [{"name": "default", "template": value}] if isinstance(value, str) else value
    if not isinstance(entries, list) or not all(
        isinstance(e, Mapping) and isinstance(e.get("name"), str) and isinstance(e.get("template"), str)
        for e in entries
    ):
        raise ArtifactError(
            "tokenizer_config.json: chat_template: expected a template or a list of named templates, found "
            f"{type(value).__name__}: export the checkpoint again"
        )
    longest = max((len(entry["template"].encode("utf-8", "surrogatepass")) for entry in entries), default=0)
    if len(entries) > TEMPLATE_FILES or longest > TEMPLATE_BYTES:
        raise ArtifactError(
            f"tokenizer_config.json: chat_template: expected at most {TEMPLATE_FILES} templates of {TEMPLATE_BYTES} "
            f"bytes, found {len(entries)}, the longest of {longest}: export the checkpoint again"
        )
    return {entry["name"]: entry["template"] for entry in entries}


def _short_list(name: str, value: object) -> list[Any]:
    """A copy of a list of messages or tools; RequestError when it is none, or has too many."""
    if not isinstance(value, (list, tuple)):
        raise RequestError(f"{name}: expected a list of objects, found {type(value).__name__}")
    if len(value) > CONVERSATION_MESSAGES:
        raise RequestError(
            f"{name}: expected at most {CONVERSATION_MESSAGES} {name}, found {len(value)}: shorten the conversation"
        )
    return list(value)


def _checked_message(message: object, plain: PlainData) -> Any:
    if not isinstance(message, Mapping) or not isinstance(message.get("role"), str):
        raise RequestError(f"messages: expected objects with a role and a content, found {reprlib.repr(message)}")
    # An absent key is what templates test for; None would be printed.
    return plain.copy({key: value for key, value in message.items() if value is not None})
