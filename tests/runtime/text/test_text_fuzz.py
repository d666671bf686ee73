"""Whatever the text files of a checkpoint and the messages of a user hold, only typed errors come out."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hybridge.artifact.errors import ArtifactError, HybridgeError, RequestError
from hybridge.artifact.limits import MIB
from hybridge.runtime.generation.checkpoint_defaults import eos_token_ids, read_generation_config, recommended_sampling
from hybridge.runtime.sandbox.process import LimitedProcess, LimitError, ProcessLimits
from hybridge.runtime.sandbox.tokenizer import TokenizerLibrary
from hybridge.runtime.text import ChatTemplate, Tokenizer
from hybridge.runtime.text.special_tokens import extra_special_tokens, named_special_tokens, read_tokenizer_config
from hybridge.runtime.text.tokenizer_shape import LINEAR_PATTERNS, unbounded_part
from tests.runtime.text.template_sources import source
from tests.runtime.text.tokenizer_files import byte_fallback_tokenizer, byte_level_tokenizer
from tests.support.effort import examples
from tests.support.fuzzing import ODD_VALUES, RandomInput, fuzzed

# One process for all examples; those that go over its limits cost a new one.
PROCESS = LimitedProcess(ProcessLimits(seconds=0.25, memory=192 * MIB, request=MIB))
UNCHECKED = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.function_scoped_fixture]
# Copies: a test may change what it put in.
VALUES = st.sampled_from(ODD_VALUES).map(copy.deepcopy)
MESSAGES = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "é", "tool_calls": [{"a": 1}]}]

_texts = st.sampled_from(["", "a", "ab", " ", "▁", "aaaaaaaa", "é", "<s>", "a" * 40])
_counts = st.sampled_from([0, 1, 2, 5, -1, 10**6, 2**64 - 1, 2**64, 1.5])
_patterns = st.one_of(
    _texts.map(lambda text: {"String": text}),
    st.sampled_from([*sorted(LINEAR_PATTERNS), "", "(a+)+$", "(a|a)*b", "(", "a{9}{9}{9}{9}", r"\p{N}", "[^a]*"]).map(
        lambda text: {"Regex": text}
    ),
    VALUES,
)
_fields = {
    "pattern": _patterns,
    "content": _texts,
    "behavior": st.sampled_from(["Isolated", "Removed", "MergedWithPrevious", "Contiguous"]),
    "invert": st.booleans(),
    "prepend": _texts,
    "replacement": _texts,
    "prepend_scheme": st.sampled_from(["always", "first", "never"]),
    "split": st.booleans(),
    "add_prefix_space": st.booleans(),
    "trim_offsets": st.booleans(),
    "use_regex": st.booleans(),
    "individual_digits": st.booleans(),
    "length": _counts,
    "start": _counts,
    "stop": _counts,
    "delimiter": _texts,
    "prefix": _texts,
    "suffix": _texts,
    "cleanup": st.booleans(),
    "pad_token": _texts,
    "word_delimiter_token": _texts,
    "precompiled_charsmap": st.sampled_from(["", "AQ==", "//////////8=", "CAAAAP//////////YWJj", "AAAAAGFiYw=="]),
    "clean_text": st.booleans(),
    "handle_chinese_chars": st.booleans(),
    "strip_accents": st.booleans(),
    "lowercase": st.booleans(),
    "strip_left": st.booleans(),
    "strip_right": st.booleans(),
    "sep": st.just(["a", 0]),
    "cls": st.just(["b", 1]),
    "single": st.lists(
        st.sampled_from([{"SpecialToken": {"id": "X", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}]),
        max_size=3,
    ),
    "pair": st.just([]),
    "special_tokens": st.sampled_from([{}, {"X": {"id": "X", "ids": [1], "tokens": ["a"]}}]),
}
_TYPES = {
    "normalizer": "BertNormalizer NFC NFKD Lowercase Strip StripAccents Nmt ByteLevel Prepend Replace Precompiled",
    "pre_tokenizer": "BertPreTokenizer ByteLevel CharDelimiterSplit Digits FixedLength Metaspace Punctuation Split "
    "UnicodeScripts Whitespace WhitespaceSplit",
    "post_processor": "BertProcessing ByteLevel RobertaProcessing TemplateProcessing",
    "decoder": "BPEDecoder ByteFallback ByteLevel CTC Fuse Metaspace Replace Strip WordPiece",
}
_MEMBERS = {
    "normalizer": "normalizers",
    "pre_tokenizer": "pretokenizers",
    "post_processor": "processors",
    "decoder": "decoders",
}


def _part(kind: str) -> st.SearchStrategy[Any]:
    types = st.sampled_from(_TYPES[kind].split())
    # Most fields are present, because the library ignores the text without them.
    full = st.fixed_dictionaries({"type": types, **_fields})
    some = st.fixed_dictionaries({"type": types}, optional=_fields)
    one = full | some
    sequence = st.lists(one, max_size=3).map(lambda parts: {"type": "Sequence", _MEMBERS[kind]: parts})
    return st.none() | one | sequence | VALUES


_vocabularies = st.dictionaries(_texts, _counts | st.integers(0, 5), max_size=5)
_models = st.one_of(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["BPE", "WordLevel", "WordPiece"]),
            "vocab": st.just({"a": 0, "b": 1, "ab": 2, "<unk>": 3}) | _vocabularies,
            "merges": st.just(["a b"]) | st.lists(_texts, max_size=2) | VALUES,
            "unk_token": st.sampled_from([None, "<unk>", "nope"]),
        },
        optional={
            "dropout": _counts,
            "continuing_subword_prefix": _texts,
            "end_of_word_suffix": _texts,
            "fuse_unk": st.booleans(),
            "byte_fallback": st.booleans(),
            "ignore_merges": st.booleans(),
            "max_input_chars_per_word": _counts,
        },
    ),
    st.fixed_dictionaries(
        {
            "type": st.just("Unigram"),
            "vocab": st.lists(st.tuples(_texts, st.sampled_from([0.0, -1.0, 1e308, -1e308])).map(list), max_size=4),
            "unk_id": _counts | st.none(),
        },
        optional={"byte_fallback": st.booleans()},
    ),
    VALUES,
)
_added = st.lists(
    st.fixed_dictionaries(
        {
            "id": st.integers(0, 6) | _counts,
            "content": _texts,
            **{key: st.booleans() for key in ("single_word", "lstrip", "rstrip", "normalized", "special")},
        }
    ),
    max_size=2,
)
tokenizer_files = st.fixed_dictionaries(
    {"version": st.just("1.0"), "added_tokens": st.just([]) | _added, "model": _models},
    optional={
        **{kind: _part(kind) for kind in _TYPES},
        "padding": VALUES,
        "truncation": st.just({"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 5})
        | VALUES,
    },
)
inputs = st.sampled_from(["", "abab aab é", "a" * 60 + "b", "<s>▁ 12\n", "ﷺ" * 20])


@pytest.mark.fuzz
@settings(max_examples=examples(400), deadline=None, suppress_health_check=UNCHECKED)
@given(data=tokenizer_files, text=inputs, ids=st.lists(st.integers(0, 7) | st.just(2**32 - 1), max_size=6))
def test_any_tokenizer_loads_or_is_an_error(data: dict[str, Any], text: str, ids: list[int]) -> None:
    file = json.dumps(data)
    if unbounded_part(data) is None:
        # In this process, which a panic or an abort would end.
        try:
            library = TokenizerLibrary(file, "tokenizer.json", ["<s>", "ab"])
            library.encode(text, True)
            library.decode(ids, True)
            library.special_ids(), library.content(), library.longest_token()
        except (ArtifactError, RequestError) as error:
            # A panic is an error too, but not one that a bounded shape may meet.
            assert type(error.__context__).__module__ != "pyo3_runtime", error
            assert len(str(error)) < 500
        return
    try:
        PROCESS.call("load", file, "tokenizer.json", ["<s>", "ab"])
        PROCESS.call("call", "encode", text, True)
        PROCESS.call("call", "decode", ids, True)
    except LimitError as error:
        assert "exit code" not in str(error), error
    except (ArtifactError, RequestError):
        pass


@pytest.fixture(scope="module", params=[byte_level_tokenizer, byte_fallback_tokenizer])
def real_file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    return json.loads((request.param(tmp_path_factory.mktemp("real")) / "tokenizer.json").read_text())


@pytest.mark.fuzz
@settings(max_examples=examples(120), deadline=None, suppress_health_check=UNCHECKED)
@given(data=st.data(), text=inputs)
def test_any_damage_of_a_real_tokenizer_is_an_error(real_file: dict[str, Any], data: st.DataObject, text: str) -> None:
    damaged = copy.deepcopy(real_file)
    for _ in range(data.draw(st.integers(1, 3))):
        here: Any = damaged
        while True:
            keys = list(here) if isinstance(here, dict) else list(range(len(here)))
            key = data.draw(st.sampled_from(keys))
            if not (isinstance(here[key], (dict, list)) and here[key]) or data.draw(st.booleans()):
                break
            here = here[key]
        here[key] = data.draw(VALUES)
    inner_test: Any = test_any_tokenizer_loads_or_is_an_error
    inner_test.hypothesis.inner_test(damaged, text, [0, 5, 300])


@fuzzed(400)
def test_any_template_renders_or_is_an_error(random: RandomInput) -> None:
    template = ChatTemplate({"default": source(random)}, {"bos_token": "<s>"}, PROCESS)
    try:
        assert isinstance(template.render(MESSAGES, [{"type": "function"}], random.chance(0.5)), str)
    except (ArtifactError, RequestError) as error:
        # An exit code is what an error of no type leaves of the process.
        assert "exit code" not in str(error), error


@fuzzed(400)
def test_any_messages_render_or_are_an_error(random: RandomInput) -> None:
    keys = ("role", "content", "tool_calls", "a")
    messages: Any = random.json_value()
    if random.chance(0.8):
        messages = [{"role": "user", "content": "", **random.json_object(keys)} for _ in range(random.randrange(4))]
    tools, extra = random.choice([None, [], random.json_value()]), random.json_value()
    source = "{% for m in messages %}{{ m.role }}{{ m | tojson }}{{ tools | tojson }}{{ extra }}{% endfor %}"
    template = ChatTemplate({"default": source}, {}, PROCESS)
    try:
        template.render(messages, tools, extra=extra)
    except RequestError as error:
        assert "exit code" not in str(error), error


CONFIG_FIELDS = [
    "bos_token",
    "eos_token",
    "x_token",
    "extra_special_tokens",
    "additional_special_tokens",
    "added_tokens_decoder",
    "chat_template",
]
SAMPLING_FIELDS = [
    "eos_token_id",
    "do_sample",
    "temperature",
    "top_k",
    "top_p",
    "min_p",
    "repetition_penalty",
    "max_new_tokens",
]


@fuzzed(1500)
def test_any_tokenizer_config_is_read_or_an_error(tmp_path: Path, random: RandomInput) -> None:
    config, named = (random.json_object(CONFIG_FIELDS) if random.chance(0.8) else random.json_value() for _ in range(2))
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    (tmp_path / "special_tokens_map.json").write_text(json.dumps(named))
    try:
        read = read_tokenizer_config(tmp_path)
        special = named_special_tokens(tmp_path, read)
        assert all(isinstance(text, str) for text in [*special.values(), *extra_special_tokens(read)])
        ChatTemplate.from_folder(tmp_path, read, special, PROCESS)
    except ArtifactError:
        pass


@fuzzed(1500)
def test_any_generation_config_is_read_or_an_error(tmp_path: Path, random: RandomInput) -> None:
    config = random.json_object(SAMPLING_FIELDS) if random.chance(0.8) else random.json_value()
    (tmp_path / "generation_config.json").write_text(json.dumps(config))
    try:
        fields = read_generation_config(tmp_path)
        recommended_sampling(fields)
        assert all(isinstance(token, int) for token in eos_token_ids(fields))
    except ArtifactError:
        pass


@fuzzed(200)
def test_any_special_tokens_of_a_real_tokenizer_are_errors_or_text(small_folder: Path, random: RandomInput) -> None:
    special, extra = random.json_value(), random.json_value()
    config = {"bos_token": special, "extra_special_tokens": extra}
    (small_folder / "tokenizer_config.json").write_text(json.dumps(config))
    try:
        tokenizer = Tokenizer.from_folder(small_folder)
        tokenizer.encode("Call<s>")
        assert tokenizer.bos_token_id is None or tokenizer.bos_token_id >= 0
    except HybridgeError:
        pass


@pytest.fixture(scope="module")
def small_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return byte_level_tokenizer(tmp_path_factory.mktemp("small"))
