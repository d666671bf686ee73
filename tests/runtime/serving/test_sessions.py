"""Sessions continue with the same weights, in pools that fit, in another process; otherwise they are refused."""

from __future__ import annotations

import itertools
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hybridge.artifact.dtypes import DType
from hybridge.artifact.errors import RequestError
from hybridge.artifact.kv_dtypes import FP8_E4M3
from hybridge.artifact.safetensors_file import read_safetensors
from hybridge.runtime.generation import Generation
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.session_file import SavedSession, read_session, write_session
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.serving.sessions import weights_name
from hybridge.runtime.serving.settings import ServingSettings
from tests.support.artifacts import ArtifactCache
from tests.support.effort import sample

MAX_SEQ, ROWS = 96, 3
PROMPT = np.random.default_rng(8).integers(3, 97, 37).tolist()


def folder_of(artifacts: ArtifactCache, seed: int = 0, full_hash: bool = False) -> Path:
    options = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ, "full_hash": full_hash}
    # Without other weights that of most tests here, which is exported once.
    return artifacts.get("nemotron_h", "float32", {"seed": seed} if seed else {}, **options).folder


def opened(folder: Path, **cache: object) -> LLM:
    settings = PrefixCacheSettings(**cache)  # type: ignore[arg-type]
    return LLM(folder, "onnxruntime", serving=ServingSettings(prefix_cache=settings), threads=1)


def saved(folder: Path, path: Path) -> Generation:
    """A conversation, whose session is in ``path``."""
    with opened(folder) as llm:
        answer = llm.generate(PROMPT, max_new_tokens=5)
        llm.save_session(path, answer)
    return answer


@pytest.fixture(scope="module")
def chat(artifacts: ArtifactCache, tmp_path_factory: pytest.TempPathFactory) -> SavedSession:
    """A conversation of the first weights, as its file says it."""
    path = tmp_path_factory.mktemp("sessions") / "chat.session"
    saved(folder_of(artifacts), path)
    return read_session(path)


def test_another_process_continues_the_session(artifacts: ArtifactCache, tmp_path: Path) -> None:
    folder, file = folder_of(artifacts), tmp_path / "chat.session"
    answer = saved(folder, file)
    history = [*PROMPT, *answer.token_ids]
    with opened(folder) as llm:
        whole = llm.generate([*history, 9, 10], max_new_tokens=5)
        assert whole.cached_tokens == 0
    program = f"""
import json, hybridge
with hybridge.LLM({str(folder)!r}, "onnxruntime", serving=hybridge.ServingSettings(prefix_cache="radix")) as llm:
    llm.load_session({str(file)!r})
    answer = llm.generate({[*history, 9, 10]}, max_new_tokens=5)
print(json.dumps([answer.cached_tokens, answer.token_ids]))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [len(history) - 1, list(whole.token_ids)]


@pytest.mark.parametrize("full_hash", sample((False, True), on_push=(False,)))
def test_a_session_of_other_weights_is_refused(artifacts: ArtifactCache, tmp_path: Path, full_hash: bool) -> None:
    """However the manifest names them."""
    file = tmp_path / "chat.session"
    saved(folder_of(artifacts, 0, full_hash), file)
    with opened(folder_of(artifacts, 1, full_hash)) as llm:
        with pytest.raises(RequestError, match="found one of others"):
            llm.load_session(file)
        assert not llm.loop.prefix_cache.tree.nodes


def test_the_same_weights_have_the_same_name_in_every_export(artifacts: ArtifactCache) -> None:
    assert weights_name(folder_of(artifacts)) == weights_name(folder_of(artifacts, full_hash=True))


def test_every_tensor_is_part_of_the_name(artifacts: ArtifactCache, tmp_path: Path) -> None:
    """Also where a file is much longer than what is read of it."""
    copied = shutil.copytree(folder_of(artifacts), tmp_path / "copy")
    name = weights_name(copied)
    tensors = [t for path in copied.rglob("*.safetensors") for t in read_safetensors(path).tensors.values() if t.nbytes]
    assert len(tensors) > 20
    for tensor in tensors:
        for place in {tensor.offset, tensor.offset + tensor.nbytes - 1}:
            with tensor.path.open("r+b") as file:
                file.seek(place)
                byte = file.read(1)
                file.seek(place)
                file.write(bytes([byte[0] ^ 1]))
                file.flush()
                assert weights_name(copied) != name, tensor.name
                file.seek(place)
                file.write(byte)
    assert weights_name(copied) == name


def without(session: SavedSession, kind: str) -> SavedSession:
    return replace(session, arrays={name: array for name, array in session.arrays.items() if kind not in name})


def cut(session: SavedSession) -> SavedSession:
    """A token less of keys and values."""
    return replace(session, arrays={n: a[:, :-1] if "kv_pool" in n else a for n, a in session.arrays.items()})


CHANGES: dict[str, Callable[[SavedSession], SavedSession]] = {
    "a token more": lambda session: replace(session, tokens=(*session.tokens, 5)),
    "a token less": lambda session: replace(session, tokens=session.tokens[:-1]),
    "no tokens": lambda session: replace(session, tokens=()),
    "a negative token": lambda session: replace(session, tokens=(-1, *session.tokens[1:])),
    "a token that is none": lambda session: replace(session, tokens=(2**40, *session.tokens[1:])),
    "less KV": cut,
    "no KV": lambda session: without(session, "kv_pool"),
    "no recurrent state": lambda session: without(session, "recurrent_state"),
    "no arrays": lambda session: replace(session, arrays={}),
    "one more": lambda session: replace(session, arrays={**session.arrays, "x": np.zeros(3, np.float32)}),
    "another shape": lambda session: replace(session, arrays={n: a[..., :-1] for n, a in session.arrays.items()}),
    "another type": lambda session: replace(
        session, arrays={n: a.astype(np.float16) for n, a in session.arrays.items()}
    ),
}


@pytest.fixture(scope="module")
def unused(artifacts: ArtifactCache) -> Iterator[LLM]:
    """A model that refuses whatever it is given, and is as it was opened after that."""
    with opened(folder_of(artifacts)) as llm:
        yield llm


@pytest.mark.parametrize("change", CHANGES)
def test_a_session_of_another_model_is_refused(unused: LLM, chat: SavedSession, tmp_path: Path, change: str) -> None:
    """With a checksum that fits."""
    file = tmp_path / "chat.session"
    write_session(file, CHANGES[change](chat))
    with pytest.raises(RequestError, match="does not fit this artifact"):
        unused.load_session(file)
    unused.loop.scheduler.check_integrity()
    manager = unused.loop.scheduler.manager
    assert not (unused.loop.prefix_cache.tree.nodes or manager.pool.used or manager.slots.used)


def test_a_session_comes_into_a_pool_that_is_nearly_full(
    artifacts: ArtifactCache, chat: SavedSession, tmp_path: Path
) -> None:
    """While requests run, with a pinned prefix in the way: it makes room, or is refused, and disturbs no request."""
    folder, file = folder_of(artifacts), tmp_path / "chat.session"
    write_session(file, chat)
    rng = np.random.default_rng(1)
    prompts = [rng.integers(3, 97, 60).tolist() for _ in range(3)]
    with opened(folder) as llm:
        alone = [llm.generate(prompt, max_new_tokens=20).token_ids for prompt in prompts]
        one = llm.loop.pools.block_bytes * (-(-MAX_SEQ // 16) + 1) + llm.loop.pools.slot_bytes
    for more in (1.4, 2.0, 2.6, 3.2):
        serving = ServingSettings(memory_bytes=int(one * more), prefix_cache=PrefixCacheSettings(cached_states=1))
        outcomes = []
        with LLM(folder, "onnxruntime", serving=serving, threads=1) as llm:
            if more > 2.5:
                llm.cache_prefix(prompts[0][:20], "system")
            pieces = llm.generate(prompts, max_new_tokens=20, stream=True)
            found = {}
            for step, piece in enumerate(pieces):
                if piece.generation is not None:
                    found[piece.index] = piece.generation.token_ids
                if step % 7 == 3:
                    try:
                        outcomes.append(llm.load_session(file).length)
                    except RequestError as error:
                        assert "increase memory_bytes" in str(error)
                        outcomes.append(0)
                llm.loop.scheduler.check_integrity()
            assert [found[index] for index in range(3)] == alone
            assert llm.load_session(file).length == len(chat.tokens), "no request needs the memory"
            assert llm.generate([*chat.tokens, 7], max_new_tokens=1).cached_tokens == len(chat.tokens)
        assert outcomes


@pytest.mark.parametrize("tokens", [[-1], [3, 1 << 31], ["a", 1], "text", [1.5], [None], 5, [[1, 2]]], ids=repr)
def test_only_conversations_can_be_saved(unused: LLM, tmp_path: Path, tokens: Any) -> None:
    with pytest.raises(RequestError, match="expected an answer or its token ids, found "):
        unused.save_session(tmp_path / "chat.session", tokens)


def test_a_conversation_may_be_an_array(artifacts: ArtifactCache, tmp_path: Path) -> None:
    with opened(folder_of(artifacts)) as llm:
        llm.generate(PROMPT, max_new_tokens=2)
        assert llm.save_session(tmp_path / "chat.session", np.array(PROMPT)).token_ids == tuple(PROMPT[:-1])


ENGINES = ("onnxruntime", "onnxruntime-portable", "torch")
TYPES = {
    "bfloat16": {},
    "bfloat16, dense": {"layout": "dense"},
    "float16": {},
    "float32": {},
    "bfloat16, 8-bit KV": {"kv_dtype": FP8_E4M3},
}
# Of the 16-bit types: rounding what the other engine computed in float32, after two layers that round too.
ROUNDED = 2e-2


def history_in(folder: Path, engine: str, file: Path, given: Path | None = None) -> tuple[int, Path]:
    """Save to ``file`` what ``engine`` has of PROMPT, after it loaded ``given``: how many tokens it took from there."""
    with LLM(folder, engine, serving=ServingSettings(prefix_cache="radix"), threads=1) as llm:
        if given is not None:
            llm.load_session(given)
        cached = llm.generate(PROMPT, max_new_tokens=1).cached_tokens
        llm.save_session(file, PROMPT[:-1])
    return cached, file


def norm_error(found: np.ndarray, expected: np.ndarray) -> float:
    exact = expected.astype(np.float64)
    return float(np.linalg.norm(found.astype(np.float64) - exact) / np.linalg.norm(exact))


# On push, from one way of holding states to another and back.
PUSH = [(kind, ("onnxruntime", "torch")) for kind in ("bfloat16", "bfloat16, dense")]


@pytest.mark.parametrize(
    ("kind", "engines"), [*PUSH, *(pytest.param(kind, ENGINES, marks=pytest.mark.slow) for kind in TYPES)]
)
def test_every_engine_loads_what_every_engine_saved(
    artifacts: ArtifactCache, tmp_path: Path, kind: str, engines: tuple[str, ...]
) -> None:
    """Widened exactly or rounded once, and the numbers that it would have computed itself."""
    pytest.importorskip("torch", reason="the torch engine needs torch")
    stored = kind.split(",")[0]
    options = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ, **TYPES[kind]}
    folder = artifacts.get("nemotron_h", stored, {"hybrid_override_pattern": "M*"}, **options).folder
    own = {engine: history_in(folder, engine, tmp_path / engine)[1] for engine in engines}
    for source, target in itertools.permutations(engines, 2):
        cached, again = history_in(folder, target, tmp_path / "again", own[source])
        assert cached == len(PROMPT) - 1
        first, second, alone = (read_session(file).arrays for file in (own[source], again, own[target]))
        for name, array in second.items():
            held = DType.from_numpy(alone[name].dtype)
            assert DType.from_numpy(array.dtype) == held
            assert target == "torch" or held not in (DType.FLOAT16, DType.BFLOAT16), "ONNX Runtime rounds nothing"
            np.testing.assert_array_equal(array, first[name].astype(array.dtype))
            if "8-bit" not in kind or "kv" not in name:  # scales are powers of two: the next one is twice as large
                assert norm_error(array, alone[name]) < (1e-5 if stored == "float32" else ROUNDED)


def test_numbers_beyond_the_type_of_the_pools_are_refused(artifacts: ArtifactCache, tmp_path: Path) -> None:
    pytest.importorskip("torch", reason="the torch engine needs torch")
    options = {"layout": "paged", "max_batch_size": ROWS, "max_seq_len": MAX_SEQ}
    folder = artifacts.get("nemotron_h", "float16", {"hybrid_override_pattern": "M*"}, **options).folder
    _, file = history_in(folder, "onnxruntime", tmp_path / "chat.session")
    session = read_session(file)
    arrays = {name: array.copy() for name, array in session.arrays.items()}
    arrays["conv_state_0"][0, 0] = 1e5
    write_session(file, replace(session, arrays=arrays))
    with (
        LLM(folder, "torch", serving=ServingSettings(prefix_cache="radix"), threads=1) as llm,
        pytest.raises(RequestError, match="conv_state_0: expected numbers that float16 can hold, found up to 1e"),
    ):
        llm.load_session(file)
