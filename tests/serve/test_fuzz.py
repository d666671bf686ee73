"""Bodies with any values in the fields of the schema never cause an error of the server."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.serve.running import Running
from tests.support.effort import examples

pytestmark = [pytest.mark.slow, pytest.mark.fuzz]
MESSAGES = [{"role": "user", "content": "Hi"}]
# What makes each endpoint compute something, so that a random field is the only one that can be wrong.
GOOD: dict[str, dict[str, Any]] = {
    "/v1/completions": {"prompt": "The sea", "max_tokens": 2},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/responses": {"input": "Hi", "max_output_tokens": 2},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 2},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/embeddings": {"input": "Hi"},
    "/v1/sessions": {"name": "a", "prompt": "Hi"},
    "/tokenize": {"prompt": "Hi"},
    "/detokenize": {"tokens": [5]},
}
NUMBERS = st.integers(-3, 3) | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False, allow_infinity=False)
WORDS = st.sampled_from(["", "text", "json_object", "auto", "function", "(a", "<|end|>", "start: x"]) | st.text(
    max_size=9
)
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | WORDS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "json_schema", "schema", "name", "regex", "text", "role"]), inner, max_size=3
        )
    ),
    max_leaves=8,
)


@pytest.fixture(scope="module")
def fields(served: Running) -> dict[str, list[str]]:
    """The names of each endpoint's fields."""
    document = served.client.get("/openapi.json").json()
    found = {}
    for path in GOOD:
        schema = document["paths"][path]["post"]["requestBody"]["content"]["application/json"]["schema"]
        found[path] = sorted(document["components"]["schemas"][schema["$ref"].rsplit("/", 1)[1]]["properties"])
    return found


@pytest.mark.parametrize("path", GOOD)
def test_random_fields(served: Running, fields: dict[str, list[str]], path: str) -> None:
    @settings(max_examples=examples(200), deadline=None, suppress_health_check=list(HealthCheck))
    @given(changed=st.dictionaries(st.sampled_from(fields[path]), VALUES, min_size=1, max_size=2))
    def check(changed: dict[str, Any]) -> None:
        body = {"model": "demo", **GOOD[path], **changed}
        body.pop("stream", None)
        response = served.client.post(path, json=body)
        assert response.status_code in (200, 400, 403, 404), response.text
        if response.status_code != 200:
            assert response.json()["error"]["message"]

    check()
