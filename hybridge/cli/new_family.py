"""hybridge new-family."""

from __future__ import annotations

from pathlib import Path

from hybridge.cli.options import JSON, QUIET
from hybridge.cli.parser import PATH, TEXT, Argument, Command, Option
from hybridge.cli.terminal import Terminal
from hybridge.requirements import require


def _run(model_type: str, checkout: Path | None, as_json: bool, quiet: bool) -> int:
    require("torch", "transformers")
    with Terminal(as_json, quiet) as terminal:
        from hybridge.new_family import draft_family, write_family

        draft = draft_family(model_type)
        path = write_family(draft, checkout or Path())
        terminal.remark(f"wrote {path}")
        for file, row in draft.rows.items():
            terminal.show(f"\nadd to {file}:\n{row}")
        if draft.error:
            terminal.show(f"\nthe file does not read the defaults of transformers yet: {draft.error}")
        fields = [f"  {name}: {what}" for name, what in draft.open_fields.items()]
        terminal.show("\n".join(["\nfields that the file does not read yet:", *(fields or ["  none"])]))
        for number, tensors in draft.other_layers.items():
            listed = "\n".join(f"  {text}" for text in tensors)
            terminal.show(
                f"\ntensors of layer {number}, which has no attention, and which the file does not have:\n{listed}"
            )
        if draft.open_tensors is not None:
            differing = [f"  {text}" for text in draft.open_tensors]
            terminal.show(
                "\n".join(["\ntensors of the first layer with attention that differ:", *(differing or ["  none"])])
            )
        terminal.show(
            "\nOther kinds of norms, and multipliers in the code, show only in the tests against transformers."
        )
        terminal.document(draft.to_json())
    return 0


COMMAND = Command(
    "new-family",
    "Write the file of a new model family, drafted from transformers' config and model. Print the registry rows to "
    "add, the fields that it does not read yet, and the tensors that differ.",
    _run,
    Argument(
        "model_type",
        "A model_type of transformers: attention in Llama's layout or near it, in some layers at least.",
        type=TEXT,
    ),
    Option("--checkout", help="The checkout of Hybridge.", type=PATH, metavar="FOLDER", default="."),
    JSON,
    QUIET,
)
