"""Arguments and options that several commands share."""

from __future__ import annotations

from hybridge.cli.parser import OUTPUT, Argument, Switch

ARTIFACT = Argument("out", "Folder written by hybridge export.")
CHECKPOINT = Argument("checkpoint", "Folder of a Hugging Face checkpoint, or the id of one on the hub.")
CHECK = Switch(
    "--check",
    help="First compare OUT with its manifest.json; weights by header, or in full after export --full-hash.",
)
JSON = Switch("--json", "as_json", help="Print one JSON document on standard output.", group=OUTPUT)
QUIET = Switch("--quiet", "-q", help="Print results and errors only.", group=OUTPUT)
