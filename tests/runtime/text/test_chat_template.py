"""Chat templates render as in transformers, in a sandbox, with errors that name the cause."""

import datetime
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import ArtifactError, RequestError
from hybridge.artifact.limits import (
    CONVERSATION_BYTES,
    CONVERSATION_MESSAGES,
    JSON_DEPTH,
    MIB,
    TEMPLATE_BYTES,
    TEMPLATE_FILES,
)
from hybridge.runtime.sandbox.process import LimitedProcess, ProcessLimits
from hybridge.runtime.text import ChatTemplate
from tests.runtime.text.tokenizer_files import byte_level_tokenizer

MESSAGES: list[dict[str, Any]] = [
    {"role": "system", "content": "Be <brief> & kind."},
    {"role": "user", "content": " Who are you? "},
    {"role": "assistant", "content": None, "tool_calls": [{"name": "é", "arguments": {"b": 1, "a": [True, None]}}]},
    {"role": "user", "content": "Again."},
]
TOOLS = [{"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}]
SIMPLE = (
    "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% endif %}"
)
TEMPLATES = {
    "simple": SIMPLE,
    "whitespace control": (
        "{{- bos_token }}\n"
        "{%- for message in messages %}\n"
        "    {%- if message['content'] is defined %}\n"
        "        {{- '<|' + message['role'] + '|>\\n' + message['content'] | trim + '<|end|>\\n' }}\n"
        "    {%- endif %}\n"
        "{%- endfor %}\n"
    ),
    "trimmed blocks": "{% for m in messages %}\n  {% if loop.first %}\n{{ m.role }}\n  {% endif %}\n{% endfor %}\nend",
    "json": "{% for m in messages %}{{ m | tojson }}{{ m | tojson(indent=2) }}{% endfor %}{{ tools | tojson }}",
    "loop controls": (
        "{% for m in messages %}{% if loop.index0 == 0 %}{% continue %}{% endif %}{{ m.role }}{% break %}{% endfor %}"
    ),
    "generation": (
        "{% set x = 1 %}{% for m in messages %}{% generation %}{% set x = 2 %}{{ m.role }}{{ x }}{% endgeneration %}"
        "{% endfor %}{% generation %}{% set x = 3 %}{{ x }}{% endgeneration %}{{ x }}"
    ),
    "namespace": (
        "{% set ns = namespace(n=0) %}{% for m in messages %}{% set ns.n = ns.n + loop.index %}{% endfor %}{{ ns.n }}"
    ),
    "variables": "{{ dict(a=1).a }}{{ thinking if thinking is defined else 'off' }}{{ eos_token }}{{ nothing }}",
    "python string methods": "{{ messages[1].content.strip().split(' ')[-1].rstrip('?').title() }}",
}


# One process for all: it holds nothing of a template but its compiled form.
PROCESS = LimitedProcess(ProcessLimits(seconds=5, memory=256 * MIB, request=MIB))
HURRIED = LimitedProcess(ProcessLimits(seconds=0.2, memory=256 * MIB, request=MIB))


def template(source: str | list[dict[str, str]] | None, process: LimitedProcess = PROCESS) -> ChatTemplate:
    special = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate.from_folder(Path("/nonexistent"), {"chat_template": source}, special, process)


def nested(depth: int) -> list[Any]:
    inner: list[Any] = []
    for _ in range(depth):
        inner = [inner]
    return inner


def test_named_templates_in_files_render_as_in_transformers(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    saved = transformers.PreTrainedTokenizerFast.from_pretrained(byte_level_tokenizer(tmp_path / "plain"))
    saved.chat_template = {"default": SIMPLE, "tool_use": "{{ tools | tojson }}" + SIMPLE, "rag": "{{ documents }}"}
    saved.save_pretrained(tmp_path / "saved")
    assert (tmp_path / "saved" / "additional_chat_templates" / "rag.jinja").is_file()
    # Files take precedence over the config.
    config = {"chat_template": "from the config"}
    ours = ChatTemplate.from_folder(tmp_path / "saved", config, {}, PROCESS)
    theirs = transformers.PreTrainedTokenizerFast.from_pretrained(tmp_path / "saved")
    messages = [{"role": "user", "content": "Who?"}]
    for tools, name in ((None, None), (TOOLS, None), (TOOLS, "default"), (None, "rag")):
        expected = theirs.apply_chat_template(
            messages, tools=tools, chat_template=name, tokenize=False, add_generation_prompt=True
        )
        assert ours.render(messages, tools, template=name) == expected
    with pytest.raises(RequestError, match="expected one of default, rag, tool_use, found 'x'"):
        ours.render(messages, template="x")


@pytest.fixture(scope="module")
def oracle(tmp_path_factory: pytest.TempPathFactory) -> Any:
    transformers = pytest.importorskip("transformers", reason="transformers is the oracle")
    return transformers.PreTrainedTokenizerFast.from_pretrained(byte_level_tokenizer(tmp_path_factory.mktemp("chat")))


@pytest.mark.parametrize("name", TEMPLATES)
@pytest.mark.parametrize("generation_prompt", [False, True])
def test_renders_as_transformers_does(name: str, generation_prompt: bool, oracle: Any) -> None:
    source = TEMPLATES[name]
    # Leaving out a content of None is what transformers does itself since 5.21.
    messages = [{key: value for key, value in message.items() if value is not None} for message in MESSAGES]
    expected = oracle.apply_chat_template(
        messages,
        tools=TOOLS,
        chat_template=source,
        tokenize=False,
        add_generation_prompt=generation_prompt,
        thinking="on",
    )
    rendered = template(source).render(MESSAGES, TOOLS, generation_prompt, thinking="on")
    assert rendered == expected and rendered


def test_the_date_is_that_of_today() -> None:
    year = datetime.datetime.now().year
    assert template("{{ strftime_now('%Y') }}").render(MESSAGES) in (str(year), str(year + 1))


def test_the_file_goes_before_the_config(tmp_path: Path) -> None:
    config = {"chat_template": "from the config"}
    assert ChatTemplate.from_folder(tmp_path, config, {}, PROCESS).render(MESSAGES) == "from the config"
    (tmp_path / "chat_template.jinja").write_text("from the file: é", encoding="utf-8")
    assert ChatTemplate.from_folder(tmp_path, config, {}, PROCESS).render(MESSAGES) == "from the file: é"


def test_named_templates_are_chosen_by_name_and_by_tools() -> None:
    several = template([{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "tools"}])
    assert several.render(MESSAGES) == "plain"
    assert several.render(MESSAGES, TOOLS) == "tools"
    assert several.render(MESSAGES, TOOLS, template="default") == "plain"
    with pytest.raises(RequestError, match="expected one of default, tool_use, found 'rag'"):
        several.render(MESSAGES, template="rag")


def test_no_template_is_an_error_only_when_chat_is_used() -> None:
    none = template(None)
    with pytest.raises(RequestError, match="no chat template"):
        none.render(MESSAGES)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{{ raise_exception('roles must alternate') }}", "refuses the conversation: roles must alternate"),
        ("{{ messages.__class__.__mro__ }}", "refuses the conversation"),
        ("{{ messages.append(1) }}", "refuses the conversation"),
        ("{{ ''.join(1) }}", "fails on the conversation"),
        ("{% set ns = namespace() %}{% set ns.__call__ = 1 %}", "refuses the conversation"),
        ("{{ namespace(_x=1) }}", "refuses the conversation"),
        ("{{ dict.__class__ }}{{ dict.mro() }}", "refuses the conversation"),
    ],
)
def test_what_a_template_may_not_do_is_a_request_error(source: str, message: str) -> None:
    with pytest.raises(RequestError, match=message):
        template(source).render(MESSAGES)


@pytest.mark.parametrize(
    "source",
    [
        "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
        "{{ lipsum(n=10000000) }}",
        "{{ 9 ** (9 ** 9) }}",
        "{% set ns = namespace(x=[1]) %}{% for i in range(60) %}{% set ns.x = [ns.x, ns.x] %}{% endfor %}{{ ns.x }}",
        "{{ [1] | slice(10 ** 12) | list }}",
    ],
)
def test_a_template_that_computes_for_ever_is_ended(source: str) -> None:
    with pytest.raises(RequestError, match=r"needs more than 0\.2 s of processor time"):
        template(source, HURRIED).render(MESSAGES)
    # The next one starts from a new process.
    assert template("{{ 1 }}", HURRIED).render(MESSAGES) == "1"


@pytest.mark.parametrize(
    "source",
    [
        "{% set ns = namespace(s='ab') %}{% for i in range(60) %}{% set ns.s = ns.s ~ ns.s %}{% endfor %}{{ ns.s }}",
        "{{ 'a' * 10 ** 12 }}",
        "{{ 'a'.center(10 ** 12) }}",
        "{{ '%1000000000000d' % 1 }}",
        "{{ '{:>1000000000}'.format(1) }}",
        "{{ strftime_now('%c' * 100000000) }}",
        "{{ [1] | batch(10 ** 10, 1) | list }}",
    ],
)
def test_a_template_that_fills_the_memory_is_ended(source: str) -> None:
    with pytest.raises(RequestError, match="needs more than 256 MiB of memory"):
        template(source).render(MESSAGES)


@pytest.mark.parametrize("tools", [False, 0, "", {}])
def test_tools_are_a_list(tools: Any) -> None:
    with pytest.raises(RequestError, match="tools: expected a list of objects, found"):
        template("x").render(MESSAGES, tools)


def test_a_conversation_may_be_large_but_not_of_any_size() -> None:
    text = "é" * (200 << 10)
    assert template(SIMPLE).render([{"role": "user", "content": text}]) == f"[user]{text}[assistant]"
    with pytest.raises(RequestError, match="needs more than 1 MiB of input"):
        template(SIMPLE).render([{"role": "user", "content": 3 * text}])


@pytest.mark.parametrize(
    "source",
    [
        "{{ " + "(" * 2000 + "1" + ")" * 2000 + " }}",
        "{% if 1 %}" * 400 + "{% endif %}" * 400,
        "{% for a in [1] %}" * 30 + "{% endfor %}" * 30,
        "{{ " + "9" * 10000 + " }}",
        "{% break %}",
        "{{ f(a=1, a=2) }}",
        "{% macro f(a, a) %}{% endmacro %}",
    ],
)
def test_what_python_does_not_compile_is_an_artifact_error(source: str) -> None:
    with pytest.raises(ArtifactError, match="the chat template is not valid Jinja: "):
        template(source).render(MESSAGES)


def test_recursion_without_end_is_a_request_error() -> None:
    with pytest.raises(RequestError, match="recursion"):
        template("{% macro f(n) %}{{ f(n + 1) }}{% endmacro %}{{ f(0) }}").render(MESSAGES)


def test_a_template_that_is_not_jinja_names_the_line() -> None:
    with pytest.raises(ArtifactError, match="not valid Jinja: line 2"):
        template("{{ 1 }}\n{% if %}").render(MESSAGES)


@pytest.mark.parametrize(
    ("messages", "message"),
    [
        ([], "at least one message"),
        (["hello"], "objects with a role and a content, found 'hello'"),
        ([{"content": "x"}], "objects with a role"),
        ([{"role": "user", "content": object()}], "found object"),
        pytest.param(
            [{"role": "user", "content": [0] * (CONVERSATION_BYTES // 8)}],
            "at most 32 MiB with tools and variables",
            marks=pytest.mark.slow,
        ),
        ([{"role": "user"}] * (CONVERSATION_MESSAGES + 1), "messages: expected at most 65536 messages, found 65537"),
        ([{"role": "user", "content": nested(JSON_DEPTH)}], "at most 64 levels of lists and objects, found more"),
    ],
)
def test_malformed_conversations_are_refused(messages: list[Any], message: str) -> None:
    with pytest.raises(RequestError, match=message):
        template(SIMPLE).render(messages)


def test_a_malformed_template_entry_is_an_artifact_error() -> None:
    with pytest.raises(ArtifactError, match="expected a template or a list of named templates, found dict"):
        template({"default": SIMPLE})  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "value",
    ["x" * (TEMPLATE_BYTES + 1), [{"name": str(name), "template": SIMPLE} for name in range(TEMPLATE_FILES + 1)]],
    ids=["long", "many"],
)
def test_templates_of_the_config_have_the_limits_of_files(value: Any) -> None:
    with pytest.raises(ArtifactError, match="chat_template: expected at most 64 templates of 1048576 bytes, found"):
        template(value)


def test_a_text_comes_with_the_ends_of_its_messages() -> None:
    source = (
        "{% if messages[-1].role == 'odd' %}{{ raise_exception('odd') }}{% endif %}\n"
        "{% for m in messages %}[{{ m.content }}]\n{% endfor %}{% if add_generation_prompt %}>>{% endif %}"
    )
    template = ChatTemplate({"default": source}, {})
    user, odd = {"role": "user", "content": "a\ud800\n"}, {"role": "odd", "content": "b"}
    text, ends = template.render_with_ends([user, user])
    assert text == template.render([user, user]) and text.endswith("]\n>>")
    assert [text[:end] for end in ends] == [template.render([user] * n, add_generation_prompt=False) for n in (2, 1)]
    assert template.render_with_ends([user])[1] == (len(template.render([user])) - 2,)
    # Nothing follows the messages; the template refuses the first alone; another beginning for one message.
    assert template.render_with_ends([user, user], add_generation_prompt=False)[1] == ends[1:]
    assert len(template.render_with_ends([odd, user])[1]) == 1
    counting = ChatTemplate({"default": "{{ messages | length }}{% if add_generation_prompt %}>{% endif %}"}, {})
    assert counting.render_with_ends([user, user]) == ("2>", (1,))
    with pytest.raises(RequestError, match="odd"):
        template.render_with_ends([user, odd])
    template.close()
    counting.close()
