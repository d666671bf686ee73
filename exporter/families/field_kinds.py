"""The kinds of value of a config's fields, as transformers 5 checks them.

It is strict: it rejects 1 where a float is declared, and null where the type does not allow it. A config that
transformers cannot load is rejected here too. A kind ends in "?" where null is allowed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any

from hybridge.artifact.json_fields import Fields, float_from_json

Table = Mapping[str, str]

ALWAYS: Table = {
    "bool": "use_cache tie_word_embeddings is_encoder_decoder",
    "bool?": "output_hidden_states return_dict",
    "int": "vocab_size hidden_size chunk_size_feed_forward",
    "int?": "pad_token_id bos_token_id",
    "ints?": "eos_token_id",
    "float": "initializer_range",
    "str?": "transformers_version problem_type",
    "[str]?": "architectures",
    "object?": "id2label label2id",
}


def kinds_of(*tables: Table) -> Mapping[str, str]:
    """field -> kind, of ``tables`` and of the fields that every config has, without those whose last kind is ""."""
    kinds = {name: kind for table in (ALWAYS, *tables) for kind, names in table.items() for name in names.split()}
    return {name: kind for name, kind in kinds.items() if kind}


def check_kinds(fields: Fields, data: Mapping[str, Any], kinds: Mapping[str, str]) -> None:
    """Raise the error of ``fields``, naming the field, where ``data`` holds a value of another kind than ``kinds`` say.

    Other fields are left to the family's parser.
    """
    for name, kind in kinds.items():
        if name in data and not _is_of_kind(data[name], kind):
            raise fields.fail(name, " or ".join(_expected(kind)))


def _is_of_kind(value: Any, kind: str) -> bool:
    if value is None:
        return kind.endswith("?")
    return any(accepts(value) for _, accepts in _ways(kind))


def _expected(kind: str) -> Iterator[str]:
    yield from (text for text, _ in _ways(kind))
    if kind.endswith("?"):
        yield "null"


def _ways(kind: str) -> tuple[tuple[str, Callable[[Any], bool]], ...]:
    return _WAYS[kind.removesuffix("?")]


def _is_int(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_float(value: Any) -> bool:
    """A float, or an infinity as transformers writes it: {"__float__": "Infinity"}."""
    return isinstance(value, float) or (isinstance(value, Mapping) and float_from_json(value) is not None)


def _list_of(accepts: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, list) and all(map(accepts, value))


_INT = ("an integer", _is_int)
_TEXT = ("a string", lambda value: isinstance(value, str))
_FLOAT = ("a number with a decimal point", _is_float)
# kind -> what may stand there, in words and as a check.
_WAYS: Mapping[str, tuple[tuple[str, Callable[[Any], bool]], ...]] = {
    "bool": (("true or false", lambda value: isinstance(value, bool)),),
    "int": (_INT,),
    "ints": (_INT, ("a list of integers", _list_of(_is_int))),
    "float": (_FLOAT,),
    "fraction": (("a number with a decimal point from 0 to 1", lambda value: _is_float(value) and 0 <= value <= 1),),
    "number": (("a number", lambda value: _is_int(value) or _is_float(value)),),
    "str": (_TEXT,),
    "int or str": (_INT, _TEXT),
    "object": (("an object", lambda value: isinstance(value, Mapping)),),
    "[int]": (("a list of integers", _list_of(_is_int)),),
    "[float]": (("a list of numbers with a decimal point", _list_of(_is_float)),),
    "[str]": (("a list of strings", _list_of(lambda value: isinstance(value, str))),),
}
