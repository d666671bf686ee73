"""Names in the graph, and the folders of data that ship with the code."""

from __future__ import annotations

import pytest

from hybridge.artifact import names
from hybridge.artifact.errors import HybridgeError
from hybridge.artifact.resources import data_folder


def test_names_of_states_and_their_next_values() -> None:
    assert [names.present(make(3)) for make in (names.past_key, names.past_value)] == [
        "present_key_3",
        "present_value_3",
    ]
    assert [names.present(make(3)) for make in (names.conv_state, names.recurrent_state)] == [
        "present_conv_state_3",
        "present_recurrent_state_3",
    ]
    assert names.layer_output(12) == "layers.12.output"


def test_data_folders_are_found() -> None:
    assert any(data_folder("configs").glob("*.toml"))
    with pytest.raises(HybridgeError, match="'nothing'"):
        data_folder("nothing")
