"""Limits and optimization profiles."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import SettingError
from hybridge.trt_plugins.build.options import BuildOptions
from hybridge.trt_plugins.build.presets import read_preset
from hybridge.trt_plugins.build.profiles import Limits, engine_limits, engine_profiles
from tests.build.tiny_artifact import MAX_BATCH, MAX_SEQ_LEN, tiny_config

CONFIG = tiny_config(DType.FLOAT16)
PRESET = replace(
    read_preset("generic"),
    max_batch_size=4,
    max_seq_len=80,
    prefill_opt_batch=2,
    prefill_opt_seq=16,
    prefill_max_seq=64,
    decode_opt_batch=3,
)


@pytest.mark.parametrize(
    ("preset", "options", "expected"),
    [
        (PRESET, {}, Limits(4, 80)),
        (replace(PRESET, max_batch_size=9, max_seq_len=999), {}, Limits(MAX_BATCH, MAX_SEQ_LEN)),
        (PRESET, {"max_batch_size": 5}, Limits(5, 80)),
        (PRESET, {"max_seq_len": 600}, Limits(4, 600)),
        (PRESET, {"max_batch_size": 1, "max_seq_len": 1}, Limits(1, 1)),
    ],
)
def test_limits(preset: object, options: dict[str, int], expected: Limits) -> None:
    assert engine_limits(CONFIG, preset, BuildOptions(**options)) == expected


@pytest.mark.parametrize(
    ("options", "words"),
    [({"max_batch_size": 6}, "max_batch_size: expected at most 5"), ({"max_seq_len": 601}, "max_seq_len: .* most 600")],
)
def test_an_option_beyond_the_artifact_is_refused(options: dict[str, int], words: str) -> None:
    with pytest.raises(SettingError, match=words):
        engine_limits(CONFIG, PRESET, BuildOptions(**options))


def shapes(limits: Limits, profile: str, name: str) -> list[list[int]]:
    profiles = engine_profiles(CONFIG, PRESET, limits)
    assert [p.name for p in profiles] == ["prefill", "decode"]
    return next(p for p in profiles if p.name == profile).shapes[name]


def test_prefill_takes_one_to_the_longest_chunk() -> None:
    assert shapes(Limits(4, 80), "prefill", "input_ids") == [[1, 1], [2, 16], [4, 64]]


def test_decode_takes_one_token() -> None:
    assert shapes(Limits(4, 80), "decode", "input_ids") == [[1, 1], [3, 1], [4, 1]]


@pytest.mark.parametrize("profile", ["prefill", "decode"])
def test_caches_have_a_fixed_length(profile: str) -> None:
    assert [shape[2] for shape in shapes(Limits(4, 80), profile, "past_key_0")] == [80, 80, 80]


def test_small_limits_cap_the_tuned_shapes() -> None:
    assert shapes(Limits(1, 7), "prefill", "input_ids") == [[1, 1], [1, 7], [1, 7]]


def test_every_input_has_shapes() -> None:
    for profile in engine_profiles(CONFIG, PRESET, Limits(4, 80)):
        assert list(profile.shapes) == [binding.name for binding in CONFIG.bindings.inputs]
