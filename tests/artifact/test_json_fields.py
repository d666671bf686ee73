"""Typed reading of JSON objects: values, defaults, and errors that name file, field, expected and found."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from hybridge.artifact.errors import ArtifactError, CheckpointError
from hybridge.artifact.json_fields import Fields, float_from_json, load_given_json_object, load_json_object
from hybridge.artifact.limits import JSON_BYTES, JSON_DEPTH, JSON_VALUES

DATA = {"i": 3, "f": 2.5, "b": True, "s": "x", "a": [1, "y"], "o": {"k": 1}, "null": None, "objects": [{"k": 1}]}


def fields(**extra: Any) -> Fields:
    return Fields({**DATA, **extra}, "file.json")


def test_values() -> None:
    f = fields()
    assert f.integer("i", minimum=3) == 3 and f.number("f") == 2.5 and f.number("i") == 3.0
    assert f.boolean("b") is True and f.string("s") == "x" and f.choice("s", ["w", "x"]) == "x"
    assert f.array("a") == [1, "y"] and f.object("o") == {"k": 1} and f.fields("o").integer("k") == 1
    assert f.map("objects", lambda item: item.integer("k")) == (1,)
    assert f.raw("null") is None and "null" in f and "none" not in f


def test_absent_key_takes_the_default_or_is_an_error() -> None:
    f = fields()
    assert f.integer("none", 7) == 7 and f.string("none", None) is None and f.number("none", None) is None
    for read in (f.raw, f.integer, f.number, f.boolean, f.string, f.array, f.object):
        with pytest.raises(ArtifactError, match=r"file\.json: none: expected .*found nothing"):
            read("none")


def test_null_needs_the_default_none() -> None:
    f = fields()
    assert f.integer("null", None) is None and f.string("null", None) is None
    for read in (f.integer, f.number, f.boolean, f.string, f.array, f.object):
        with pytest.raises(ArtifactError, match="found None"):
            read("null")
    with pytest.raises(ArtifactError, match="found None"):
        f.integer("null", 3)


@pytest.mark.parametrize(
    ("method", "wrong"),
    [
        ("integer", ["3", 3.0, True, [], {}]),
        ("number", ["3", True, [], float("nan"), "nan", {"__float__": "NaN"}, 10**400]),
        ("boolean", [0, 1, "true", []]),
        ("string", [3, True, ["x"], {}]),
        ("array", ["ab", {}, 3]),
        ("object", [[], "ab", 3]),
        ("fields", [[], "ab", 3]),
    ],
)
def test_wrong_types_name_field_and_value(method: str, wrong: list[Any]) -> None:
    for value in wrong:
        with pytest.raises(ArtifactError, match=r"file\.json: key: expected .*, found "):
            getattr(fields(key=value), method)("key")


def test_limits() -> None:
    with pytest.raises(ArtifactError, match="at least 4"):
        fields().integer("i", minimum=4)
    with pytest.raises(ArtifactError, match="one of 'p', 'q'"):
        fields().choice("s", ["p", "q"])
    with pytest.raises(ArtifactError, match="a list of objects"):
        fields().map("a", lambda item: item)


def test_nested_errors_name_the_place() -> None:
    with pytest.raises(ArtifactError, match=r"file\.json: o: k: expected a string"):
        fields().fields("o").string("k")
    with pytest.raises(ArtifactError, match=r"file\.json: objects\[0\]: k"):
        fields().map("objects", lambda item: item.string("k"))


def test_unknown_fields_are_refused() -> None:
    f = Fields({"a": 1, "c": 2, "b": 3}, "file.json", CheckpointError)
    f.raw("a")
    assert f.unread() == ("b", "c")
    with pytest.raises(CheckpointError, match="b, c"):
        f.refuse_unknown()
    f.raw("b"), f.raw("c", None)
    f.refuse_unknown()


def test_long_values_are_cut() -> None:
    with pytest.raises(ArtifactError) as caught:
        fields(key="x" * 10_000).integer("key")
    assert len(str(caught.value)) < 250


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (3, 3.0),
        (-2.5, -2.5),
        ("inf", float("inf")),
        ("-Infinity", float("-inf")),
        ({"__float__": "Infinity"}, float("inf")),
        ({"__float__": 1.5}, 1.5),
        (float("inf"), float("inf")),
        (float("nan"), None),
        ("1.5", None),
        (True, None),
        (None, None),
        ({"__float__": "x", "y": 1}, None),
    ],
)
def test_float_from_json(value: Any, number: float | None) -> None:
    assert float_from_json(value) == number


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"", "not valid JSON"),
        (b"{", "not valid JSON"),
        (b"\xff\xfe", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
        (b"[1]", "found list"),
        (b"null", "found NoneType"),
    ],
)
def test_bad_files(tmp_path: Path, content: bytes, words: str) -> None:
    (tmp_path / "x.json").write_bytes(content)
    with pytest.raises(CheckpointError, match=words) as caught:
        load_json_object(tmp_path / "x.json", CheckpointError)
    assert "x.json" in str(caught.value)


def test_missing_file_and_folder(tmp_path: Path) -> None:
    with pytest.raises(ArtifactError, match="expected the file"):
        load_json_object(tmp_path / "x.json")
    with pytest.raises(ArtifactError, match="found a folder"):
        load_json_object(tmp_path)


def test_files_that_would_take_all_memory_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    os.truncate(path, JSON_BYTES + 1)
    for load in (load_json_object, load_given_json_object):
        with pytest.raises(ArtifactError, match=f"expected at most {JSON_BYTES} bytes"):
            load(path, ArtifactError)


@pytest.mark.parametrize(("opening", "closing"), [("[", "]"), ('{"b":', "}")])
def test_nested_too_deeply(tmp_path: Path, opening: str, closing: str) -> None:
    def nested(levels: int) -> str:
        return '{"a":' + opening * (levels - 1) + ("1" if closing == "}" else "") + closing * (levels - 1) + "}"

    (tmp_path / "x.json").write_text(nested(JSON_DEPTH))
    load_json_object(tmp_path / "x.json")
    (tmp_path / "x.json").write_text(nested(JSON_DEPTH + 1))
    with pytest.raises(ArtifactError, match=r"x\.json: expected at most 64 levels"):
        load_json_object(tmp_path / "x.json")


def test_too_many_values(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text('{"a": [' + "0," * (JSON_VALUES - 2) + "0]}")
    assert len(load_json_object(tmp_path / "x.json")["a"]) == JSON_VALUES - 1
    (tmp_path / "x.json").write_text('{"a": [' + "0," * (JSON_VALUES - 1) + "0]}")
    with pytest.raises(ArtifactError, match="expected at most 1048576 values in lists and objects, found more"):
        load_json_object(tmp_path / "x.json")
    assert len(load_given_json_object(tmp_path / "x.json", ArtifactError)["a"]) == JSON_VALUES


def test_only_a_file_that_the_user_names_may_be_a_link_elsewhere(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "real.json").write_text('{"a": 1}')
    (tmp_path / "folder" / "x.json").symlink_to(tmp_path / "real.json")
    assert load_given_json_object(tmp_path / "folder" / "x.json", ArtifactError) == {"a": 1}
    with pytest.raises(ArtifactError, match="found a link that leaves it"):
        load_json_object(tmp_path / "folder" / "x.json")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root reads every file")
def test_file_without_permission(tmp_path: Path) -> None:
    path = tmp_path / "x.json"
    path.write_text("{}")
    path.chmod(0)
    with pytest.raises(ArtifactError, match="Permission denied"):
        load_json_object(path)
