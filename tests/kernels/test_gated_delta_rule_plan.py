"""Which kernel runs a ``gated_delta_rule`` call; needs no GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from hybridge.artifact.errors import UnsupportedError
from hybridge.trt_plugins.kernels.call import DeviceTraits, KernelLaunch, Memory, OpCall, PackedRows
from hybridge.trt_plugins.kernels.compiler import compile_kernel
from hybridge.trt_plugins.kernels.ops.gated_delta_rule import LONGEST_CHANNEL_WALK, LONGEST_WALK, plan, sources
from hybridge.trt_plugins.kernels.source import KernelSource
from tests.support.kernel_calls import H200, ORIN, op_call

BF16, F32 = torch.bfloat16, torch.float32
ADA = replace(H200, capability=(8, 9), multiprocessors=128, shared_bytes=101376)
AMPERE = replace(H200, capability=(8, 0), shared_bytes=166912)
A100 = replace(AMPERE, multiprocessors=108)
PAIRS = "gated_delta_rule_prefill_pairs"


def call_of(
    rows: int = 3,
    key_heads: int = 16,
    value_heads: int = 32,
    key_size: int = 128,
    value_size: int = 128,
    time: int | None = None,
    dtype: torch.dtype = BF16,
    state: torch.dtype = F32,
    gap: int = 0,
    packed: PackedRows | None = None,
    **attributes: object,
) -> OpCall:
    """A call on tensors without memory, whose q, k, v and beta are slices of one wider tensor."""
    lead = (rows, time) if time else (rows,)
    keys, values = key_heads * key_size, value_heads * value_size
    wide = torch.empty(*lead, 2 * keys + values + value_heads + gap, dtype=dtype, device="meta")[..., gap:]
    q, k, v, beta = wide.split([keys, keys, values, value_heads], -1)
    q, k = (tensor.unflatten(-1, (key_heads, key_size)) for tensor in (q, k))
    v = v.unflatten(-1, (value_heads, value_size))
    decays = key_size if attributes.get("decay") == "key_channel" else 1
    g = torch.empty(*lead, value_heads, decays, device="meta")
    states = torch.empty(rows, value_heads, key_size, value_size, dtype=state, device="meta")
    lengths = None if packed else torch.empty(rows, dtype=torch.int32, device="meta")
    o = torch.empty(*lead, value_heads, value_size, dtype=dtype, device="meta")
    return op_call("gated_delta_rule", [q, k, v, g, beta, states, lengths], [o, states], attributes, packed)


def decode(device: DeviceTraits = H200, **call: object) -> KernelLaunch:
    (launch,) = plan(call_of(**call), device).launches  # type: ignore[arg-type]
    return launch


def variant(launch: KernelLaunch) -> dict[str, str]:
    return dict(launch.source.defines)


@pytest.mark.parametrize("time", [None, 1])
def test_one_token_a_row_is_one_pass_over_the_state(time):
    launch = decode(time=time)
    assert launch.source.entry == "gated_delta_rule_decode"
    assert variant(launch)["MANY"] == "0"


def test_packed_rows_of_at_most_one_token_decode():
    launch = decode(packed=PackedRows(2, 1))
    assert launch.source.entry == "gated_delta_rule_decode"
    assert launch.grid[2] == launch.params.rows.rows == 2


@pytest.mark.parametrize("state", [F32, BF16], ids=str)
@pytest.mark.parametrize(("key_size", "value_size"), [(128, 128), (64, 64), (96, 192), (8, 8), (256, 256), (40, 248)])
def test_blocks_cover_the_state(key_size, value_size, state):
    for rows in (1, 8, 64):
        launch = decode(rows=rows, key_size=key_size, value_size=value_size, state=state)
        macros = {name: int(value) for name, value in variant(launch).items() if value.isdigit()}
        if "columns" in launch.source.file:
            assert launch.block == (key_size, 1, 1) and launch.grid == (2 * max(1, value_size // 128), 16, rows)
            continue
        lanes, rows_of_thread = macros["COLUMN_LANES"], macros["ROWS"]
        assert launch.block == (macros["THREADS"], 1, 1) and macros["THREADS"] % 32 == 0
        assert macros["THREADS"] // lanes * rows_of_thread >= key_size
        assert rows_of_thread % macros["KEY_ACCESS"] == 0 and key_size % rows_of_thread == 0
        slices = -(-value_size // (lanes * 16 // (4 if state is F32 else 2)))
        assert launch.grid == (2 * slices, 16, rows)


def test_states_are_cut_by_their_bytes_for_each_multiprocessor():
    def cut(rows: int, **call: object) -> tuple[str, str]:
        macros = variant(decode(rows=rows, **call))
        return macros["COLUMN_LANES"], macros["ROWS"]

    assert [cut(rows) for rows in (1, 8, 64)] == [("4", "8"), ("8", "16"), ("16", "8")]
    assert [cut(rows, state=BF16) for rows in (1, 8)] == [("4", "4"), ("4", "4")]
    # The floats next to the state leave no room for 16 rows per thread.
    assert cut(8, decay="key_channel") == cut(8, time=4) == ("16", "8")


def test_many_states_of_16_bits_run_on_tensor_cores():
    taken = (decode(rows=64, state=BF16), decode(rows=64, state=BF16, decay="key_channel"))
    assert [variant(launch)["CHANNEL_DECAY"] for launch in taken] == ["0", "1"]
    assert {launch.source.file for launch in taken} == {"gated_delta_rule/decode_columns.cu"}
    others = (
        decode(rows=64),
        decode(rows=8, state=BF16),
        decode(rows=64, state=BF16, gap=4),
        decode(rows=64, state=BF16, time=4),
        decode(rows=64, dtype=torch.float16, state=torch.float16, decay="key_channel"),
        decode(rows=64, state=BF16, value_size=96),
        decode(rows=128, state=BF16, key_size=80),
    )
    assert {other.source.file for other in others} == {"gated_delta_rule/decode_slices.cu"}


def test_odd_strides_narrow_the_accesses():
    assert [variant(decode(rows=64, gap=gap))["KEY_ACCESS"] for gap in (0, 4, 2, 1)] == ["8", "4", "2", "1"]


def test_strides_and_attributes_are_those_of_the_call():
    launch = decode(rows=4, key_heads=2, value_heads=6, key_size=64, value_size=32, gap=40)
    params, width = launch.params, 2 * 2 * 64 + 6 * 32 + 6 + 40
    assert (params.q_row, params.q_token, params.q_head, params.k_head) == (width, 0, 64, 64)
    assert (params.v_row, params.v_head, params.beta_row, params.g_row) == (width, 32, width, 6)
    assert (params.o_row, params.o_head, params.state_slot) == (6 * 32, 32, 6 * 64 * 32)
    assert (params.values_per_key, params.scale) == (3, 0.125)
    assert decode(scale=0.5).params.scale == 0.5
    assert variant(decode(use_qk_l2norm=0))["NORMED"] == "0"
    channel = decode(rows=4, decay="key_channel")
    assert variant(channel)["CHANNEL_DECAY"] == "1" and channel.params.g_row == 32 * 128


def test_packed_tokens_have_a_token_stride():
    params = decode(rows=4, key_heads=2, value_heads=6, key_size=64, value_size=32, packed=PackedRows(3, 1)).params
    assert (params.q_row, params.q_token) == (0, 2 * 2 * 64 + 6 * 32 + 6)


def test_pointers_follow_the_addressing():
    dense, packed = decode(), decode(packed=PackedRows(3, 1))
    assert "rows.context_lengths" in dense.pointers and "rows.query_start_loc" not in dense.pointers
    assert "rows.state_indices" in packed.pointers and "rows.context_lengths" not in packed.pointers
    assert "rows.state_indices" not in decode(packed=PackedRows(3, 1, has_state_indices=False)).pointers


def test_dependent_launch_only_where_the_hardware_has_it():
    assert decode().overlap
    assert not decode(device=ORIN).overlap


@pytest.mark.parametrize("decay", ["head", "key_channel"])
@pytest.mark.parametrize("sizes", [{"key_size": 24}, {"value_size": 40}, {"key_size": 8, "value_size": 8}], ids=str)
def test_heads_that_products_do_not_divide_are_walked(sizes, decay):
    (launch,) = plan(call_of(time=500, decay=decay, **sizes), H200).launches
    assert launch.source.entry == "gated_delta_rule_decode" and variant(launch)["MANY"] == "1"


@pytest.mark.parametrize(("name", "size"), [("key_size", 264), ("value_size", 12)])
def test_refuses_sizes_that_no_kernel_has(name, size):
    with pytest.raises(UnsupportedError, match=f"{name} from 8 to 256 in multiples of 8, found {name} {size}"):
        decode(**{name: size})


def test_refuses_more_rows_than_a_grid_holds():
    with pytest.raises(UnsupportedError, match="split the call"):
        decode(rows=65536, key_heads=1, value_heads=1, key_size=16, value_size=16)


def test_refuses_states_that_are_strided_or_not_aligned():
    call = call_of()
    state = torch.empty(3, 128, 32, 128, device="meta").transpose(1, 2)
    wide = torch.empty(3, 32 * 128 * 128 + 2, device="meta")[:, : 32 * 128 * 128].unflatten(1, (32, 128, 128))
    for found, words in ((state, "its last 3 axes contiguous"), (wide, "at multiples of 16 bytes")):
        inputs = [torch.empty(layout.shape, dtype=getattr(torch, layout.dtype.value)) for layout in call.inputs]
        inputs[5] = found
        with pytest.raises(UnsupportedError, match=words):
            plan(op_call("gated_delta_rule", inputs, [inputs[2], found], {}), H200)


@pytest.mark.parametrize("device", [H200, ORIN, ADA], ids=["H200", "Orin", "Ada"])
def test_many_tokens_run_in_chunks(device):
    prepare, columns = plan(call_of(rows=2, time=1000), device).launches
    hopper = ("gated_delta_rule_prepare_pairs", "gated_delta_rule_prefill_groups")
    others = ("gated_delta_rule_prepare_pairs", "gated_delta_rule_prefill")
    assert (prepare.source.entry, columns.source.entry) == (hopper if device is H200 else others)
    # With the second kernel one block per multiprocessor, else up to four, each with several chunks of key heads.
    at_once = 132 if device is H200 else min(16 * 16 * 2, 4 * device.multiprocessors)
    assert prepare.grid == (at_once, 1, 1) and columns.grid[1:] == (16, 2)
    assert prepare.pointers["chunks"].memory is columns.pointers["chunks"].memory is Memory.WORKSPACE
    assert prepare.overlap is columns.overlap is (device is H200)


def test_chunks_are_announced_to_concurrent_warpgroups():
    for rows, value_size, together in ((2, 128, 1), (3, 128, 0), (3, 192, 0)):
        found = plan(call_of(rows=rows, value_size=value_size, time=1000), H200)
        prepare, groups = found.launches
        assert prepare.params.together == groups.params.together == together
        assert prepare.grid == ((132 if together else 4 * 132), 1, 1)
        assert prepare.params.rows_at_once == (1 if value_size == 192 else rows)
        assert prepare.params.readers == groups.grid[0] // 2
        assert prepare.pointers["waiting"].memory is groups.pointers["waiting"].memory is Memory.COUNTERS
        assert found.counter_bytes == 4 * rows * 16 * 32
    found = plan(call_of(rows=2, time=1000), ADA)
    assert found.counter_bytes == 0 and not any("waiting" in launch.pointers for launch in found.launches)


def test_longer_rows_next_to_draft_tokens_keep_the_counters():
    found = plan(call_of(rows=600, packed=PackedRows(4, 500, draft_slots=3)), H200)
    assert len(found.launches) == 3 and found.counter_bytes == 4 * (600 // 64 + 4) * 32


def test_few_tokens_are_walked():
    for call in (call_of(time=LONGEST_WALK), call_of(time=LONGEST_CHANNEL_WALK, decay="key_channel")):
        (launch,) = plan(call, H200).launches
        assert launch.source.entry == "gated_delta_rule_decode" and variant(launch)["MANY"] == "1"
    assert len(plan(call_of(time=LONGEST_WALK + 1), H200).launches) == 2


@pytest.mark.parametrize("device", [H200, ORIN, ADA], ids=["H200", "Orin", "Ada"])
def test_decays_of_key_channels_run_in_chunks_where_these_fit(device):
    call = call_of(rows=2, time=LONGEST_CHANNEL_WALK + 1, decay="key_channel")
    prepare, columns = plan(call, device).launches
    assert (prepare.source.entry, prepare.grid) == ("gated_delta_rule_prepare_channels", (1, 32, 2))
    assert variant(columns)["CHANNEL_DECAY"] == "1"
    assert max(prepare.shared_bytes, columns.shared_bytes) <= device.shared_bytes
    chunk = 3 * 64 * 128 * 2 + 2 * 10 * 256 * 2 + 4 * (4 * 64 + 4) + 4 * 128
    assert plan(call, device).workspace_bytes == 2 * 32 * (-(-chunk // 128) * 128)
    large = call_of(time=500, key_size=256, dtype=F32, decay="key_channel")
    assert len(plan(large, device).launches) == (2 if device is H200 else 1)


def test_decays_of_key_channels_have_warpgroups_on_hopper():
    def launches(rows: int = 2, device: DeviceTraits = H200, **call: object) -> tuple[KernelLaunch, ...]:
        return plan(call_of(rows=rows, time=100, decay="key_channel", **call), device).launches  # type: ignore[arg-type]

    for rows, value_size, groups, stages in ((1, 128, "1", "3"), (8, 128, "2", "2"), (8, 192, "1", "3")):
        prepare, states = launches(rows, value_size=value_size)
        assert states.source.entry == "gated_delta_rule_prefill_groups" and variant(prepare)["PANELS"] == "1"
        found = variant(states)
        assert (found["CHANNEL_DECAY"], found["GROUPS"], found["STAGES"]) == ("1", groups, stages)
        assert "waiting" not in states.pointers and states.shared_bytes <= H200.shared_bytes
    others = (
        launches(device=ADA),
        launches(8, key_size=96),
        launches(8, value_size=96),
        launches(dtype=F32),
        launches(8, gap=4),
    )
    for prepare, states in others:
        assert states.source.entry == "gated_delta_rule_prefill" and variant(prepare)["PANELS"] == "0"


def second(device: DeviceTraits, **call: object) -> KernelLaunch:
    return plan(call_of(**{"time": 100} | call), device).launches[1]  # type: ignore[arg-type]


def test_heads_are_cut_while_blocks_fit_the_device_at_once():
    def warps(rows: int, device: DeviceTraits = AMPERE, **call: object) -> str:
        return variant(second(device, rows=rows, **call))["WARPS"]

    assert [warps(rows) for rows in (1, 2, 4, 8)] == ["2", "4", "8", "8"]
    assert [warps(rows, A100) for rows in (1, 2, 4)] == ["4", "8", "8"]
    # Cuts into 64 columns have three blocks a head.
    assert [warps(1, value_heads=heads, value_size=192) for heads in (16, 32, 48)] == ["2", "4", "8"]
    assert warps(8, value_size=32) == "2"
    assert warps(1, ORIN) == "8"


@pytest.mark.parametrize("decay", ["head", "key_channel"])
def test_few_blocks_have_warps_for_their_outputs(decay):
    pairs = [second(AMPERE, rows=rows, decay=decay) for rows in (1, 2, 4, 8)]
    assert [launch.source.entry for launch in pairs] == 2 * [PAIRS] + 2 * ["gated_delta_rule_prefill"]
    assert [launch.block[0] // 32 for launch in pairs] == [2 + 2 + 4, 4 + 4 + 4, 8, 8]
    assert all(launch.shared_bytes <= AMPERE.shared_bytes for launch in pairs)


def test_warps_for_outputs_need_registers_and_shared_memory():
    one_row = {"rows": 1, "time": 100}
    assert second(ADA, **one_row).source.entry == PAIRS
    assert second(ADA, rows=2).source.entry == "gated_delta_rule_prefill"
    for other in ({"dtype": F32}, {"key_size": 192}, {"decay": "key_channel"}, {"rows": 8, "value_size": 16}):
        assert second(ADA, **one_row | other).source.entry == "gated_delta_rule_prefill"


def test_hopper_has_whole_warpgroups_where_tiles_are_whole_panels():
    one, two = second(H200, rows=1), second(H200, rows=8)
    assert [dict(launch.source.defines)["GROUPS"] for launch in (one, two)] == ["1", "2"]
    assert (one.grid, one.block) == ((4, 16, 1), (192, 1, 1)) and (two.grid, two.block) == ((2, 16, 8), (384, 1, 1))
    assert dict(second(H200, rows=64, value_size=192).source.defines)["GROUPS"] == "1"
    for other in ({"key_size": 96}, {"value_size": 96}, {"dtype": F32}, {"gap": 4}):
        assert second(H200, rows=8, **other).source.entry == "gated_delta_rule_prefill"


@pytest.mark.parametrize("device", [H200, ORIN, ADA], ids=["H200", "Orin", "Ada"])
@pytest.mark.parametrize(
    ("key_size", "dtype"), [(128, BF16), (64, BF16), (256, BF16), (16, BF16), (96, F32), (128, F32)], ids=str
)
def test_shared_memory_fits_the_device(key_size, dtype, device):
    for launch in plan(call_of(time=100, key_size=key_size, dtype=dtype), device).launches:
        assert 0 < launch.shared_bytes <= device.shared_bytes


def test_keys_too_large_for_the_shared_memory_are_refused():
    call = call_of(time=100, key_size=256, dtype=F32)
    assert plan(call, H200).launches
    with pytest.raises(UnsupportedError, match="bytes of shared memory"):
        plan(call, ADA)


def test_the_workspace_holds_every_chunk():
    chunk = 2 * 10 * 256 * 2 + 4 * (4 * 64 + 4)
    assert plan(call_of(rows=3, time=130), H200).workspace_bytes == 3 * 3 * 32 * chunk
    packed = call_of(rows=500, packed=PackedRows(7, 400))
    assert plan(packed, H200).workspace_bytes == (500 // 64 + 7) * 32 * chunk


def test_rows_that_are_not_aligned_load_element_by_element():
    for gap, aligned in ((0, "1"), (8, "1"), (4, "0")):
        launches = plan(call_of(time=100, gap=gap), ADA).launches
        assert [variant(launch)["ALIGNED"] for launch in launches] == [aligned] * 2


@pytest.mark.slow
def test_variants_compile_without_local_memory():
    pytest.importorskip("cuda.core", reason="needs cuda-core and NVRTC (extra cuda)")
    chosen: dict[str, KernelSource] = {}
    for source in sources():
        if source.hot:
            chosen.setdefault(source.file, source)
    assert len(chosen) == 11
    for source in chosen.values():
        of_hopper = "groups" in source.file or "GROUP_PRODUCTS=1" in source.label
        architecture = "sm_90a" if of_hopper else "sm_87"
        assert compile_kernel(source, architecture).report.problem is None
