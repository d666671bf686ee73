"""Opens the draft model or prediction head that the speculation settings ask for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from hybridge.artifact.call_arguments import checked_path
from hybridge.artifact.config import MTP_CONFIG_FILE, read_config
from hybridge.artifact.errors import EngineError
from hybridge.artifact.path_kind import require_artifact
from hybridge.artifact.untrusted_file import has_file
from hybridge.runtime.engines.factory import AUTO, EngineOptions
from hybridge.runtime.engines.mtp_factory import open_mtp_head
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.serving.draft_model import ModelDrafter
from hybridge.runtime.serving.mtp_drafter import MtpDrafter
from hybridge.runtime.serving.open import open_engine
from hybridge.runtime.serving.pools import serving_shape
from hybridge.runtime.serving.settings import ServingSettings
from hybridge.runtime.speculation import DraftModel, SpeculationSettings
from hybridge.runtime.speculation.settings import MTP
from hybridge.runtime.text import Tokenizer


def with_opened_drafter(
    engine: PagedEngine, settings: ServingSettings, text: ModelText
) -> tuple[ServingSettings, ModelDrafter | MtpDrafter | None]:
    """``settings`` with a drafter instead of a DraftModel or "mtp", and that drafter, which the caller closes.

    EngineError when the draft has another tokenizer, there is no head, the engine does not show
    what a head needs, or memory is short.
    """
    speculation = settings.speculation
    drafter: ModelDrafter | MtpDrafter
    if speculation is not None and isinstance(speculation.drafter, DraftModel):
        drafter = _opened(speculation, speculation.drafter, engine, settings, text)
    elif speculation is not None and speculation.drafter == MTP:
        drafter = _opened_head(speculation, engine, settings, text)
    else:
        return settings, None
    return replace(settings, speculation=replace(speculation, drafter=drafter)), drafter


def _opened(
    speculation: SpeculationSettings, draft: DraftModel, engine: PagedEngine, settings: ServingSettings, text: ModelText
) -> ModelDrafter:
    folder, shape = checked_path("folder", draft.folder), serving_shape(engine, settings)
    require_artifact(folder)
    config = read_config(folder).require_logits()
    check_same_tokenizer(text.tokenizer, ModelText(folder, config).tokenizer, folder)
    own = open_engine(folder, engine.name if draft.engine == AUTO else draft.engine, EngineOptions(draft.threads))
    try:
        length, vocab = shape.max_seq_len, engine.config.vocab_size
        return ModelDrafter(own, vocab, shape.max_rows, length, speculation.tokens, draft.memory_bytes, draft.samples)
    except BaseException:
        own.close()
        raise


def _opened_head(
    speculation: SpeculationSettings, engine: PagedEngine, settings: ServingSettings, text: ModelText
) -> MtpDrafter:
    if not has_file(text.folder, MTP_CONFIG_FILE):
        raise EngineError(
            f"{text.folder}: expected an artifact with a multi-token prediction head, found none: export a checkpoint "
            "that has one with `layout='paged'`, or use another drafter"
        )
    shape, head = serving_shape(engine, settings), open_mtp_head(text.folder, engine)
    try:
        return MtpDrafter(head, engine, shape.max_rows, shape.max_seq_len, speculation.tokens)
    except BaseException:
        head.close()
        raise


def check_same_tokenizer(model: Tokenizer | None, draft: Tokenizer | None, folder: Path) -> None:
    """EngineError unless both have the same tokens, by content, or neither has a tokenizer."""
    if model is None and draft is None:
        return
    if model is None or draft is None:
        which = "the model" if model is None else "the draft"
        raise EngineError(
            f"{folder}: expected a draft with the model's tokenizer, found {which} without one: use another"
        )
    here, there = model.content, draft.content
    differing = [name for name in here if here[name] != there[name]]
    if differing:
        raise EngineError(
            f"{folder}: expected a draft with the model's tokenizer, found another {' and '.join(differing)}: use a "
            "model of the same family"
        )
