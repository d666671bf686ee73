"""A prefix cache whose states lie in 8 bits, apart from those of the rows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest

from hybridge.artifact.errors import EngineError, RequestError, SettingError
from hybridge.runtime.blocks import CacheNeeds
from hybridge.runtime.engines.factory import EngineOptions
from hybridge.runtime.engines.paged_factory import create_paged_engine
from hybridge.runtime.engines.pool_sizes import PoolSizes
from hybridge.runtime.generation import Generation, Request
from hybridge.runtime.llm import LLM
from hybridge.runtime.prefix_cache.settings import PrefixCacheSettings
from hybridge.runtime.prefix_cache.token_key import key_from_tokens
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.scheduler import Priority
from hybridge.runtime.serving.loop import ServingLoop
from hybridge.runtime.serving.pools import CacheSlots, ServingShape, pools_in
from hybridge.runtime.serving.request import ServingRequest
from hybridge.runtime.serving.settings import ServingSettings
from tests.runtime.prefix_cache.oracle import Oracle, check_all, poison
from tests.runtime.serving.conftest import ROWS, Opened
from tests.runtime.serving.toy_loop import answers
from tests.runtime.toy_engine import HYBRID, PURE_ATTENTION, PURE_MAMBA
from tests.runtime.toy_paged_engine import ToyPagedEngine, paged_config, toy_greedy

RNG = np.random.default_rng(9)
SYSTEM, OTHER = (RNG.integers(3, 97, 41).tolist() for _ in range(2))


class PackingToy(ToyPagedEngine):
    """Packs without any loss, in a quarter of the bytes; ``fails`` after so many times."""

    fails: int | None = None

    def packed_slot_bytes(self, kind: str) -> int:
        return self.slot_bytes // 4

    def allocate_pools(self, sizes: PoolSizes) -> None:
        super().allocate_pools(sizes)
        self.packed = np.full((sizes.num_packed, 2), np.nan)

    def pack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        if self.fails is not None:
            self.fails -= 1
            if self.fails < 0:
                raise EngineError("the toy engine was told not to pack")
        assert len(set(targets)) == len(targets) and not np.isnan(self.states[list(sources)]).any()
        self.packed[list(targets)] = self.states[list(sources)]

    def unpack_slots(self, sources: Sequence[int], targets: Sequence[int]) -> None:
        assert len(set(targets)) == len(targets) and not np.isnan(self.packed[list(sources)]).any()
        self.states[list(targets)] = self.packed[list(sources)]


def toy(layers: Sequence[str] = HYBRID, fail_at: Sequence[int] = ()) -> PackingToy:
    return PackingToy(paged_config(layers), max_tokens=32, max_rows=4, fail_at=fail_at)


def poison_toy(loop: ServingLoop, engine: PackingToy) -> None:
    manager = loop.scheduler.manager
    blocks = [b for b in range(manager.pool.num_blocks) if not manager.pool.references(b)]
    sources = {source for source, _ in loop.scheduler._slot_copies}
    engine.poison(
        blocks, [s for s in range(manager.slots.num_slots) if not manager.slots.in_use(s) and s not in sources]
    )
    engine.packed[[s for s in range(manager.states.num_slots) if not manager.states.in_use(s)]] = np.nan


@pytest.mark.parametrize("layers", [HYBRID, PURE_MAMBA])
@pytest.mark.parametrize("states", [0, 1, 5, 40])
def test_disturbed_requests_get_the_tokens_of_each_alone(layers: Sequence[str], states: int) -> None:
    """In pools for two sequences: others lose their place, are cancelled, or die with a step that fails."""
    engine, rng = toy(layers, fail_at=(17, 40)), np.random.default_rng(states)
    needed = 2 * (25 * engine.block_bytes(4) + 16) + 4 * (states + 1)
    cache = PrefixCacheSettings(cached_states=states, decode_interval=4, states="int8")
    loop = ServingLoop(
        engine, ServingSettings(4, memory_bytes=needed, swap_bytes=300, policy=Priority(), prefix_cache=cache), (), None
    )
    assert loop.pools.sizes.num_packed >= min(states, 1) and loop.pools.pool_bytes <= needed
    requests: list[Request] = []
    found: dict[int, list[Generation]] = {}
    base = rng.integers(0, 61, 60).tolist()
    for _ in range(60):
        prompt = (*base[: int(rng.integers(0, 50))], *rng.integers(0, 61, int(rng.integers(1, 9))).tolist())
        requests.append(Request(prompt, SamplingParams(ignore_eos=True, n=int(rng.choice([1, 1, 1, 2]))), 6))
    waiting = list(requests)
    while waiting or loop.busy:
        while waiting and rng.random() < 0.5:
            loop.add(ServingRequest(waiting.pop(0), priority=int(rng.integers(0, 3))))
        if rng.random() < 0.05:
            loop.cancel(int(rng.integers(0, len(requests))))
        poison_toy(loop, engine)
        for output in loop.step():
            if output.error is None and output.piece is not None and output.piece.generation is not None:
                found.setdefault(output.request_id, []).append(output.piece.generation)
        loop.scheduler.check_integrity()
    for id_, generations in found.items():
        expected = toy_greedy(engine.config, requests[id_].prompt_ids, 6)
        assert all(list(each.token_ids) == expected for each in generations)
    assert len(found) > 40
    tree = loop.prefix_cache.tree
    sizes = loop.pools.sizes
    assert bool(loop.prefix_cache.metrics.hit_tokens) or sizes.num_packed <= sizes.num_slots
    assert tree.states <= sizes.num_packed
    tree.clear()
    manager = loop.scheduler.manager
    assert not (manager.pool.used or manager.slots.used or manager.states.used)


def test_equal_bytes_hold_four_times_as_many_states() -> None:
    shape, engine = ServingShape(max_rows=4, max_tokens=32, max_seq_len=96, block_size=4), toy()
    needs, budget = CacheNeeds(kv=True, state=True), 4 * (25 * 32 + 16) + 6 * 16
    left = budget - 4 * 16
    for states, exact, packed in ((None, left // 32, left // 8), (6, 6, 7), (23, 23, 24)):
        sizes = [pools_in(engine, needs, shape, budget, CacheSlots(states, kind)).sizes for kind in ("exact", "int8")]
        assert (sizes[0].num_slots - 4, sizes[0].num_packed) == (exact, 0)
        assert (sizes[1].num_slots, sizes[1].num_packed) == (4, packed)
    # Six exact states and 24 packed ones leave as much to the blocks.
    six = pools_in(engine, needs, shape, budget, CacheSlots(6))
    many = pools_in(engine, needs, shape, budget, CacheSlots(23, "fp8"))
    assert six.sizes.num_blocks == many.sizes.num_blocks and six.pool_bytes == many.pool_bytes
    assert (six.cached_bytes, many.cached_bytes) == (16, 4)
    assert str(many).endswith("states 0.0 MiB (4 slots), fp8 states of the cache 0.0 MiB (24 slots)")
    free = pools_in(toy(PURE_ATTENTION), CacheNeeds(kv=True, state=False), shape, budget, CacheSlots(5, "int8"))
    assert free.sizes.num_packed == free.sizes.num_slots == 0


def test_as_many_chats_as_packed_states_continue_from_their_ends() -> None:
    """Twelve chats in the bytes of three exact states."""
    found = {}
    for states, count in (("exact", 3), ("int8", 12)):
        engine = toy()
        budget = 16 * 25 * engine.block_bytes(4) + (1 + 3) * 16 + 4
        cache = PrefixCacheSettings(cached_states=count, prompt_checkpoints="branches", states=states)
        settings = ServingSettings(4, max_rows=1, memory_bytes=budget, prefix_cache=cache)
        loop, history = ServingLoop(engine, settings, (), None), []
        chats = [[chat, 3, 5, chat, 7, 9, 11, chat] for chat in range(12)]
        for turn in range(3):
            cached = []
            for chat in chats:
                loop.add(ServingRequest(Request(tuple(chat), SamplingParams(ignore_eos=True), 4)))
                out = [output.piece.generation for _ in range(9) if loop.busy for output in loop.step()]
                (answer,) = [each for each in out if each is not None]
                # All but the last token of the answer before.
                cached.append(answer.cached_tokens == (len(chat) - 2 if turn else 0))
                chat += [*answer.token_ids, turn]
            history.append(sum(cached))
        found[states] = history
    assert found["int8"] == [12, 12, 12] and found["exact"][1:] == [0, 0]


def test_a_sequence_that_ends_frees_its_slot_even_where_packing_fails() -> None:
    engine = toy()
    cache = PrefixCacheSettings(cached_states=4, prompt_checkpoints="branches", states="int8")
    loop = ServingLoop(engine, ServingSettings(4, prefix_cache=cache), (), None)
    engine.fails = 0
    loop.add(ServingRequest(Request((1, 2, 3, 4, 5), SamplingParams(ignore_eos=True), 3)))
    out = [output for _ in range(6) if loop.busy for output in loop.step()]
    assert [list(tokens) for tokens in answers(out).values()] == [toy_greedy(engine.config, (1, 2, 3, 4, 5), 3)]
    manager = loop.scheduler.manager
    assert not (loop.prefix_cache.tree.states or manager.slots.used or manager.states.used)
    loop.scheduler.check_integrity()


def test_settings_and_engines_that_do_not_fit_are_refused() -> None:
    with pytest.raises(SettingError, match="states: expected one of exact, int8, fp8, found 'int4'"):
        PrefixCacheSettings(states="int4")
    with pytest.raises(SettingError, match="host_states: expected one of exact, int8, found 'fp8'"):
        PrefixCacheSettings(states="int8", host_states="fp8")
    engine = ToyPagedEngine(paged_config(HYBRID))
    with pytest.raises(EngineError, match="the toy-paged engine keeps no states in 8 bits"):
        ServingLoop(engine, ServingSettings(prefix_cache=PrefixCacheSettings(states="int8")), (), None)


@pytest.fixture(params=["onnxruntime", "torch"])
def opened(folder: Path, request: pytest.FixtureRequest) -> Iterator[Opened]:
    """Opens the artifact with room for four sequences and ``count`` states of the cache, in int8."""
    with ExitStack() as open_now:

        def open_llm(count: int = 8, kind: str | None = None, **cache: object) -> LLM:
            engine = create_paged_engine(folder, kind or request.param, EngineOptions(threads=1))
            chosen = PrefixCacheSettings(cached_states=count, **{"states": "int8", **cache})  # type: ignore[arg-type]
            each = engine.slot_bytes if chosen.states == "exact" else engine.packed_slot_bytes(chosen.states)
            memory = 28 * engine.block_bytes(16) + ROWS * engine.slot_bytes + (count + 1) * each
            return open_now.enter_context(
                LLM(folder, engine=engine, serving=ServingSettings(memory_bytes=memory, prefix_cache=chosen))
            )

        yield open_llm


def ask(llm: LLM, prompt: list[int], new: int = 5):
    poison(llm.loop, llm.engine)
    return llm.generate(prompt, max_new_tokens=new)


@pytest.mark.parametrize(("states", "most"), [("int8", 2e-2), ("fp8", 8e-2)])
def test_states_that_are_resumed_are_nearly_exact(opened: Opened, oracle: Oracle, states: str, most: float) -> None:
    llm = opened(states=states)
    first = ask(llm, [*SYSTEM, 5], 3)
    again = ask(llm, [*SYSTEM, 5], 3)
    assert again.cached_tokens == 41 and again.token_ids == first.token_ids
    longer = ask(llm, [*SYSTEM, 5, *again.token_ids, 7, 8], 3)
    assert longer.cached_tokens == 44
    check_all(llm.loop, llm.engine, oracle, most)
    with pytest.raises(AssertionError, match="relative error"):
        check_all(llm.loop, llm.engine, oracle)
    report = llm.prefix_cache_report()
    assert (
        report.state_bytes
        == report.states * llm.engine.packed_slot_bytes(states)
        < report.states * llm.engine.slot_bytes
    )
    llm.loop.scheduler.check_integrity()


def test_a_state_is_unchanged_by_a_round_trip_to_the_host(opened: Opened, oracle: Oracle) -> None:
    llm = opened(host_bytes=1 << 20)
    ask(llm, [*SYSTEM, 5], 3)
    tree = llm.loop.prefix_cache.tree
    before = {node.key: llm.engine.packed_out(node.state) for node in tree.walk() if node.state is not None}
    tree.clear()
    report = llm.prefix_cache_report()
    packed = report.counts.spilled_states * llm.engine.packed_slot_bytes("int8")
    assert report.host_bytes == report.counts.spilled_blocks * llm.loop.pools.block_bytes + packed
    assert ask(llm, [*SYSTEM, 5], 3).cached_tokens == 41
    llm.loop.settle()
    back = {node.key: llm.engine.packed_out(node.state) for node in tree.walk() if node.state is not None}
    key = key_from_tokens(SYSTEM)
    for name, rows in before[key].packed.items():
        assert (back[key].packed[name].values == rows.values).all()
        assert (back[key].packed[name].factors == rows.factors).all()
    check_all(llm.loop, llm.engine, oracle, 2e-2)


@pytest.mark.parametrize(("saves", "loads"), [("int8", "int8"), ("int8", "exact"), ("exact", "fp8")])
def test_sessions_go_between_caches_of_all_kinds(
    opened: Opened, oracle: Oracle, tmp_path: Path, saves: str, loads: str
) -> None:
    first = opened(states=saves)
    answer = ask(first, SYSTEM)
    first.save_session(tmp_path / "chat.session", answer)
    second = opened(states=loads, kind="torch" if first.engine.name == "onnxruntime" else "onnxruntime")
    poison(second.loop, second.engine)
    second.load_session(tmp_path / "chat.session")
    check_all(second.loop, second.engine, oracle, 8e-2 if "fp8" in (saves, loads) else 2e-2)
    history = [*SYSTEM, *answer.token_ids]
    whole = ask(second, [*history, 9, 10])
    assert whole.cached_tokens == len(history) - 1
    check_all(second.loop, second.engine, oracle, 8e-2 if "fp8" in (saves, loads) else 2e-2)


def test_a_pinned_prefix_takes_a_packed_state_and_no_slot_of_the_rows(opened: Opened, oracle: Oracle) -> None:
    llm = opened(2)
    for _ in range(3):
        ask(llm, OTHER)
        ask(llm, [*OTHER, 5])
    llm.cache_prefix(SYSTEM, name="system")
    rng = np.random.default_rng(0)
    for _ in range(6):
        ask(llm, rng.integers(3, 97, 60).tolist())
    assert ask(llm, [*SYSTEM, 7, 8]).cached_tokens == 41
    assert llm.loop.scheduler.capacity.slots == ROWS
    llm.cache_prefix(OTHER, name="other")
    llm.cache_prefix([*OTHER, 5], name="more")
    with pytest.raises(RequestError, match="expected room for it in the prefix cache"):
        llm.cache_prefix([*SYSTEM, 3, 4], name="third")
    check_all(llm.loop, llm.engine, oracle, 2e-2)
