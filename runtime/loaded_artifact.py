"""An artifact with an engine, its texts and a serving loop: what LLM and AsyncLLM are two faces of."""

from __future__ import annotations

from contextlib import ExitStack, closing
from pathlib import Path

from hybridge.artifact.call_arguments import checked_path
from hybridge.artifact.settings import checked_int
from hybridge.runtime.engines.dense import DenseEngine
from hybridge.runtime.engines.factory import AUTO, EngineOptions
from hybridge.runtime.engines.paged import PagedEngine
from hybridge.runtime.model_text import ModelText
from hybridge.runtime.sampling import SamplingParams
from hybridge.runtime.serving.cache_control import CacheControl
from hybridge.runtime.serving.open import as_paged, open_engine, open_loop
from hybridge.runtime.serving.settings import ServingSettings


class LoadedArtifact:
    """Everything that does not depend on how calls are made.

    ``engine`` runs steps over pools, whatever the artifact's layout; ``loop`` is the only one to step it.
    """

    def __init__(
        self,
        path: str | Path,
        engine: str | DenseEngine | PagedEngine = AUTO,
        max_batch_size: int | None = None,
        max_seq_len: int | None = None,
        threads: int | None = None,
        engine_folder: str | Path | None = None,
        serving: ServingSettings | None = None,
        exact_products: bool = False,
    ) -> None:
        """Load the artifact folder ``path``.

        ArtifactError: not a valid artifact. EngineError: no such engine. SettingError: beyond its limits.
        """
        self.folder = folder = checked_path("path", path)
        with ExitStack() as opened:
            if isinstance(engine, str):
                options = EngineOptions(threads, engine_folder, exact_products)
                self.engine = opened.enter_context(closing(open_engine(folder, engine, options)))
            else:
                self.engine = as_paged(engine)
            self.config = self.engine.config.require_logits()
            self._text = opened.enter_context(closing(ModelText(folder, self.config)))
            self.tokenizer, self.chat_template = self._text.tokenizer, self._text.chat_template
            self.eos_token_ids = self._text.eos_token_ids
            _check_limit("max_batch_size", max_batch_size, self.engine.limits.max_rows)
            _check_limit("max_seq_len", max_seq_len, self.config.max_seq_len)
            settings = (serving or ServingSettings()).limited(max_batch_size, max_seq_len)
            self._drafter = None
            if settings.speculation is not None:
                from hybridge.runtime.serving.open_drafter import with_opened_drafter

                settings, self._drafter = with_opened_drafter(self.engine, settings, self._text)
            if self._drafter is not None:
                opened.enter_context(closing(self._drafter))
            self.loop = open_loop(self.engine, settings, self._text)
            self._cache = CacheControl(self.loop, folder)
            self.max_batch_size, self.max_seq_len = self.loop.shape.max_rows, self.loop.shape.max_seq_len
            self._on_open()
            opened.pop_all()

    def _on_open(self) -> None:
        """Create what makes calls; all else is there."""

    @property
    def recommended_sampling(self) -> SamplingParams:
        """The parameters of the checkpoint's generation_config.json; applied only if passed to a call."""
        return self._text.recommended_sampling

    def _release(self) -> None:
        """Close all that was opened; calling it twice is allowed."""
        self._text.close()
        if self._drafter is not None:
            self._drafter.close()
        self.engine.close()


def _check_limit(name: str, value: int | None, limit: int) -> None:
    if value is not None:
        checked_int(name, value, 1, limit)
