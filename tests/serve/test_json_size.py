"""Bodies with millions of values are refused before they are parsed; the first wrong item of a list ends its check."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from hybridge.artifact.limits import CONVERSATION_MESSAGES, REQUEST_OBJECTS, REQUEST_VALUES
from hybridge.serve import json_size
from hybridge.serve.errors import ApiError
from hybridge.serve.json_size import check_values
from hybridge.serve.schemas.base import RequestBody
from hybridge.serve.schemas.chat import ChatRequest
from hybridge.serve.schemas.completions import CompletionRequest
from hybridge.serve.schemas.messages import MessagesRequest
from hybridge.serve.schemas.responses import ResponsesRequest
from tests.serve.running import Running
from tests.support.effort import examples

_TEXTS = st.text('ab"\\,{[\n', max_size=8)
_VALUES = st.recursive(
    st.none() | st.integers(0, 9) | _TEXTS,
    lambda inner: st.lists(inner, max_size=5) | st.dictionaries(_TEXTS, inner, max_size=5),
    max_leaves=12,
)


def counted(value: Any) -> tuple[int, int]:
    """The objects of a value, and its values: the items of lists and objects, with one for an empty one."""
    if not isinstance(value, (list, dict)):
        return 0, 0
    inner = [counted(each) for each in (value.values() if isinstance(value, dict) else value)]
    objects, values = (sum(each) for each in zip(*inner, strict=True)) if inner else (0, 0)
    return objects + isinstance(value, dict), values + max(1, len(value))


@settings(deadline=None, max_examples=examples(60))
@given(_VALUES, st.booleans())
def test_values_are_counted_outside_of_texts(value: Any, escaped: bool) -> None:
    body, (objects, values) = json.dumps(value, ensure_ascii=escaped).encode(), counted(value)
    with pytest.MonkeyPatch.context() as patch:
        for most_objects, most_values, refused in (
            (objects, values, False),
            (max(0, objects - 1), values, objects > 0),
            (objects, max(0, values - 1), values > 0),
        ):
            patch.setattr(json_size, "REQUEST_OBJECTS", most_objects)
            patch.setattr(json_size, "REQUEST_VALUES", most_values)
            try:
                check_values(body)
            except ApiError as error:
                assert refused and error.status_code == 413
            else:
                # A body of no more bytes than objects are allowed is not looked at.
                assert not refused or len(body) <= most_objects


@pytest.mark.parametrize("end", [b"", b'"', b"\\", b'\\"'])
def test_an_unfinished_text_is_no_reason_to_refuse(end: bytes) -> None:
    check_values(b'["a", "' + b",{[" * REQUEST_OBJECTS + end)


def test_a_server_refuses_millions_of_values(served: Running) -> None:
    for body, kind in (
        (b'{"model":"demo","prompt":[' + b"1," * REQUEST_VALUES + b"1]}", "values"),
        (b'{"model":"demo","prompt":[' + b"{}," * REQUEST_OBJECTS + b"{}]}", "objects"),
    ):
        response = served.client.post("/v1/completions", content=body, headers={"content-type": "application/json"})
        assert response.status_code == 413 and f" {kind} " in response.json()["error"]["message"]


@pytest.mark.parametrize(
    ("kind", "fields"),
    [
        (ChatRequest, {"messages": [1] * 100_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": [1] * 100_000}]}),
        (ChatRequest, {"messages": [{"role": "user", "content": "a"}], "stop": [1] * 100_000}),
        (ChatRequest, {"messages": [{"role": "user", "content": "a"}] * (CONVERSATION_MESSAGES + 1)}),
        (ChatRequest, {"messages": [], "logit_bias": {str(key): "a" for key in range(100_000)}}),
        (ChatRequest, {"messages": [], **{f"field{number}": 1 for number in range(100_000)}}),
        (CompletionRequest, {"prompt": [{}] * 100_000}),
        (MessagesRequest, {"messages": [{}] * 100_000}),
        (ResponsesRequest, {"input": [1] * 100_000, "metadata": {str(key): 1 for key in range(100_000)}}),
    ],
)
def test_many_wrong_items_are_few_errors(kind: type[RequestBody], fields: dict[str, Any]) -> None:
    began = time.thread_time()
    with pytest.raises(ValidationError) as raised:
        kind.model_validate({"model": "demo", **fields})
    assert raised.value.error_count() < 10 and time.thread_time() - began < 2
