"""Run two models over one text, window by window, and compare what they predict."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import numpy as np

from hybridge.artifact.errors import SettingError
from hybridge.artifact.limits import MIB
from hybridge.artifact.path_kind import PathKind, kind_of_path, require_checkpoint
from hybridge.artifact.progress import NoProgress, Progress
from hybridge.evaluation.divergence import Divergence
from hybridge.evaluation.logits import LogitsSource
from hybridge.evaluation.options import EvaluateOptions
from hybridge.evaluation.report import EvaluateReport, ModelScore
from hybridge.evaluation.windows import check_tokens, first_scored, read_text, shared_tokenizer, token_windows
from hybridge.runtime.engines.factory import check_engine

# Logits of one block of each model.
_BLOCK_BYTES = 256 * MIB


def evaluate(
    reference: Path, other: Path, text: Path, options: EvaluateOptions | None = None, progress: Progress | None = None
) -> EvaluateReport:
    """Compare the predictions of ``other`` with those of ``reference`` over the file ``text``.

    Each is a checkpoint folder or an artifact. SettingError: their vocabularies or tokenizers differ, or the text does
    not fit; CheckpointError, ArtifactError, EngineError: one of them cannot run.
    """
    options, progress = options or EvaluateOptions(), progress or NoProgress()
    check_engine(options.engine)
    folders = (reference, other)
    for folder in folders:
        if not _is_artifact(folder):
            require_checkpoint(folder)
    content = read_text(text)
    with closing(shared_tokenizer(reference, other)) as tokenizer:
        windows = token_windows(tokenizer, content, options.window, options.windows, str(text))
    try:
        with ExitStack() as opened:
            sources = []
            for folder in folders:
                progress.start(f"load {folder}")
                sources.append(opened.enter_context(closing(_source(folder, options, windows))))
            return _compare(folders, sources, windows, progress)
    finally:
        progress.finish()


def _is_artifact(folder: Path) -> bool:
    return kind_of_path(folder) is PathKind.ARTIFACT


def _source(folder: Path, options: EvaluateOptions, windows: Sequence[np.ndarray]) -> LogitsSource:
    """The model in ``folder``, if it takes the windows."""
    size = len(windows[0])
    if _is_artifact(folder):
        from hybridge.evaluation.artifact_logits import ArtifactLogits

        source: LogitsSource = ArtifactLogits(folder, options.engine, size, options.exact_products)
    else:
        from hybridge.evaluation.checkpoint_logits import CheckpointLogits

        source = CheckpointLogits(folder)
    try:
        check_tokens(windows, source.vocab_size, folder)
        if source.most_tokens is not None and size > source.most_tokens:
            raise SettingError(
                f"window: expected at most {source.most_tokens} tokens (max_seq_len of {folder}), found {size}: give a "
                "smaller one, or export with a larger `max_seq_len`"
            )
    except BaseException:
        source.close()
        raise
    return source


def _compare(
    folders: Sequence[Path], sources: Sequence[LogitsSource], windows: Sequence[np.ndarray], progress: Progress
) -> EvaluateReport:
    reference, other = sources
    if reference.vocab_size != other.vocab_size:
        raise SettingError(
            f"{folders[1]}: expected a vocabulary of {reference.vocab_size} tokens, as the reference has, found "
            f"{other.vocab_size}: give two versions of one model"
        )
    rows = max(1, _BLOCK_BYTES // (4 * reference.vocab_size))
    found = Divergence()
    progress.start("evaluate", len(windows))
    for window in windows:
        first = first_scored(len(window))
        start = first + 1
        blocks = zip(*(source.logits(window, first, rows) for source in sources), strict=True)
        for expected, given in blocks:
            found.add(expected, given, window[start : start + len(expected)])
            start += len(expected)
        progress.advance()
    one, two = (
        ModelScore(str(folder), source.name, source.weight_bytes, perplexity)
        for folder, source, perplexity in zip(folders, sources, found.perplexities, strict=True)
    )
    return EvaluateReport(
        one,
        two,
        found.mean,
        found.quantile(0.999),
        found.same_top,
        len(windows[0]),
        len(windows),
        sum(len(window) for window in windows),
        found.positions,
        tuple(dict.fromkeys(note for source in sources for note in source.notes)),
    )
