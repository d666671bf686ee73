"""Which tokenizers are bounded by their shape: known parts with bounded parameters.

Such a tokenizer takes time and memory in proportion to the text, and meets none of the panics of the tokenizers
library. Any other one (a custom regular expression, a compiled character map, a part of unknown type) may take
the process along, and runs in a process with limits instead.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

# Parts of a tokenizer, nested ones included: published ones have at most 10.
_MOST_PARTS = 64
# How much longer all replacements together may make a text: a space becomes the 3 bytes of "▁" in published ones.
_MOST_GROWTH = 4.0
# Characters of a text that is put before, after or instead of another one.
_LONGEST_INSERTION = 16
# Characters of a vocabulary entry of a Unigram model, whose time is text times longest entry.
_LONGEST_ENTRY = 1024
# Characters of a word of a WordPiece model, whose time is the square of it.
_LONGEST_WORD = 1000
# Tokens that a post-processor adds to a text.
_MOST_ADDED = 64

_CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_SPACES = r"\s*[\r\n]+|\s+(?!\S)|\s+"
_UPPER, _LOWER = r"[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]", r"[\p{Ll}\p{Lm}\p{Lo}\p{M}]"
_PREFIX = r"[^\r\n\p{L}\p{N}]?"


def _by_case(suffix: str, digits: str, marks: str) -> str:
    words = rf"{_PREFIX}{_UPPER}*{_LOWER}+{suffix}|{_PREFIX}{_UPPER}+{_LOWER}*{suffix}"
    return rf"{words}|{digits}| ?[^\s\p{{L}}\p{{N}}]+[{marks}]*|{_SPACES}"


# Regular expressions of published tokenizers, each of which is linear in the text: a whole run of characters is
# consumed by the first alternative that looks at it, or by the one that follows.
LINEAR_PATTERNS = frozenset(
    {
        # GPT-2
        r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+",
        # cl100k (two spellings), Llama 3, Granite 4, LFM2, OLMo
        rf"{_CONTRACTION}|{_PREFIX}\p{{L}}+|\p{{N}}{{1,3}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]++[\r\n]*|"
        r"\s*[\r\n]|\s+(?!\S)|\s+",
        # Qwen 2 to Qwen 3, and Qwen 3.5
        rf"{_CONTRACTION}|{_PREFIX}\p{{L}}+|\p{{N}}| ?[^\s\p{{L}}\p{{N}}]+[\r\n]*|{_SPACES}",
        rf"{_CONTRACTION}|{_PREFIX}[\p{{L}}\p{{M}}]+|\p{{N}}| ?[^\s\p{{L}}\p{{M}}\p{{N}}]+[\r\n]*|{_SPACES}",
        # o200k, Mistral's tekken, Nemotron
        *(
            _by_case(suffix, digits, marks)
            for suffix in ("", rf"{_CONTRACTION}?")
            for digits in (r"\p{N}", r"\p{N}{1,3}")
            for marks in (r"\r\n", r"\r\n/")
        ),
        # DeepSeek 3
        r"[一-龥぀-ゟ゠-ヿ]+",
        r"""[!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+|"""
        rf" ?[\p{{P}}\p{{S}}]+[\r\n]*|{_SPACES}",
        # Digits in several of them
        r"\p{N}",
        r"\p{N}{1,3}",
        r"[0-9][0-9][0-9]",
        r"\d",
    }
)


class _UnboundedError(Exception):
    """The text names the part."""


def unbounded_part(data: Mapping[str, Any]) -> str | None:
    """The first part of tokenizer.json's content ``data`` whose time or memory nothing bounds, None without one."""
    shape = _Shape()
    try:
        shape.check(data.get("normalizer"), "normalizer", _NORMALIZERS)
        shape.check(data.get("pre_tokenizer"), "pre_tokenizer", _PRE_TOKENIZERS)
        shape.check(data.get("post_processor"), "post_processor", _POST_PROCESSORS)
        shape.check(data.get("decoder"), "decoder", _DECODERS)
        model = data.get("model")
        shape.require(isinstance(model, Mapping), "model")
        shape.check(model, "model", _MODELS)
    except _UnboundedError as error:
        return str(error)
    return None


class _Shape:
    """The walk through the parts, with what they add up to."""

    def __init__(self) -> None:
        self._parts = 0
        self._growth = 1.0

    def check(self, part: Any, where: str, rules: Mapping[str, Rule]) -> None:
        """Look at ``part`` and, in a sequence, at its members; _UnboundedError names what is not bounded."""
        if part is None:
            return
        self.require(isinstance(part, Mapping), where)
        kind = part.get("type")
        self._parts += 1
        self.require(self._parts <= _MOST_PARTS, f"{where}: more than {_MOST_PARTS} parts")
        if kind == "Sequence":
            members = next((part[key] for key in _MEMBERS if isinstance(part.get(key), list)), None)
            self.require(members is not None, where)
            for member in members or ():
                self.require(member is not None, where)
                self.check(member, where, rules)
            return
        name = f"{where}: {kind if isinstance(kind, str) else 'a part without a type'}"
        rule = rules.get(kind) if isinstance(kind, str) else None
        try:
            bounded = rule is not None and rule(part, self)
        except (AttributeError, KeyError, TypeError):  # it is malformed
            bounded = False
        self.require(bounded, name)

    def require(self, bounded: bool, name: str) -> None:
        """_UnboundedError, which names the part, unless it is ``bounded``."""
        if not bounded:
            raise _UnboundedError(name)

    def grows(self, factor: float) -> bool:
        """Whether a text that becomes ``factor`` times as long, after all that came before, is still bounded."""
        self._growth *= max(1.0, factor)
        return self._growth <= _MOST_GROWTH


Rule = Callable[[Mapping[str, Any], _Shape], bool]
_MEMBERS = ("normalizers", "pretokenizers", "processors", "decoders")


def _always(part: Mapping[str, Any], shape: _Shape) -> bool:
    return True


def _is_short(value: object, longest: int = _LONGEST_INSERTION) -> bool:
    return value is None or (isinstance(value, str) and len(value) <= longest)


def _replaces(part: Mapping[str, Any], shape: _Shape) -> bool:
    pattern, content = part.get("pattern"), part.get("content")
    text = pattern.get("String") if isinstance(pattern, Mapping) else None
    if not isinstance(text, str) or not text or not isinstance(content, str) or not _is_short(content):
        return False
    return shape.grows(len(content.encode("utf-8", "replace")) / len(text.encode("utf-8", "replace")))


def _splits(part: Mapping[str, Any], shape: _Shape) -> bool:
    pattern = part.get("pattern")
    if not isinstance(pattern, Mapping) or len(pattern) != 1:
        return False
    text = pattern.get("String")
    return bool(isinstance(text, str) and text) or pattern.get("Regex") in LINEAR_PATTERNS


def _adds_known_tokens(part: Mapping[str, Any], shape: _Shape) -> bool:
    known = part.get("special_tokens")
    if not isinstance(known, Mapping):
        return False
    counts = {name: len(entry["ids"]) for name, entry in known.items() if isinstance(entry.get("ids"), list)}
    for key in ("single", "pair"):
        pieces = part.get(key)
        if not isinstance(pieces, list) or len(pieces) > _MOST_ADDED:
            return False
        names = [piece["SpecialToken"]["id"] for piece in pieces if "SpecialToken" in piece]
        if not all(name in counts for name in names) or sum(counts[name] for name in names) > _MOST_ADDED:
            return False
    return True


def _has_no_prefix(part: Mapping[str, Any], shape: _Shape) -> bool:
    # The library cuts the prefix off entries that may be shorter.
    return not part.get("continuing_subword_prefix") and _is_short(part.get("end_of_word_suffix"))


def _has_short_entries(part: Mapping[str, Any], shape: _Shape) -> bool:
    entries = part.get("vocab")
    return isinstance(entries, list) and all(
        isinstance(entry, list) and bool(entry) and isinstance(entry[0], str) and len(entry[0]) <= _LONGEST_ENTRY
        for entry in entries
    )


def _has_short_words(part: Mapping[str, Any], shape: _Shape) -> bool:
    most = part.get("max_input_chars_per_word", 100)
    return isinstance(most, int) and most <= _LONGEST_WORD and _is_short(part.get("continuing_subword_prefix"))


_NORMALIZERS: dict[str, Rule] = {
    **dict.fromkeys(
        ["BertNormalizer", "NFC", "NFD", "NFKC", "NFKD", "Lowercase", "Strip", "StripAccents", "Nmt", "ByteLevel"],
        _always,
    ),
    "Prepend": lambda part, shape: _is_short(part.get("prepend")),
    "Replace": _replaces,
}
_PRE_TOKENIZERS: dict[str, Rule] = {
    **dict.fromkeys(
        [
            "BertPreTokenizer",
            "ByteLevel",
            "CharDelimiterSplit",
            "Digits",
            "Metaspace",
            "Punctuation",
            "UnicodeScripts",
            "Whitespace",
            "WhitespaceSplit",
        ],
        _always,
    ),
    "FixedLength": lambda part, shape: isinstance(part.get("length"), int) and part["length"] >= 1,
    "Split": _splits,
}
_POST_PROCESSORS: dict[str, Rule] = {
    **dict.fromkeys(("BertProcessing", "ByteLevel", "RobertaProcessing"), _always),
    "TemplateProcessing": _adds_known_tokens,
}
_DECODERS: dict[str, Rule] = {
    **dict.fromkeys(("ByteFallback", "ByteLevel", "Fuse", "Metaspace"), _always),
    "BPEDecoder": lambda part, shape: _is_short(part.get("suffix")),
    "Replace": _replaces,
    # The library looks for characters to strip from the end beyond the start of a short token.
    "Strip": lambda part, shape: part.get("stop") == 0,
    "WordPiece": lambda part, shape: _is_short(part.get("prefix")),
}
_MODELS: dict[str, Rule] = {
    "BPE": _has_no_prefix,
    "Unigram": _has_short_entries,
    "WordLevel": _always,
    "WordPiece": _has_short_words,
}
