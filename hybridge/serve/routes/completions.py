"""/v1/completions."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from fastapi import APIRouter, Request
from starlette.responses import JSONResponse, Response

from hybridge.artifact.errors import RequestError
from hybridge.artifact.limits import REQUEST_ANSWERS
from hybridge.runtime.generation import Generation, Piece
from hybridge.runtime.sampling import SamplingParams
from hybridge.serve.call import Call, new_id
from hybridge.serve.chat_parts import by_choice
from hybridge.serve.errors import ApiError
from hybridge.serve.event_stream import DONE, EventTemplate, event
from hybridge.serve.logprobs import LogprobTexts
from hybridge.serve.prompts import prompts_of
from hybridge.serve.sampling import sampling_params
from hybridge.serve.schemas.base import EVENTS
from hybridge.serve.schemas.completions import Completion, CompletionRequest
from hybridge.serve.structured import grammar_of
from hybridge.serve.usage import usage

router = APIRouter()


@router.post("/v1/completions", response_model=Completion, responses=EVENTS)
async def completions(body: CompletionRequest, request: Request) -> Response:
    """Continue a text, token ids, or several of either."""
    async with await Call.begin(request, body.model, body.timeout) as call:
        params = _params(body, call)
        grammar = grammar_of(body.response_format, body.structured_outputs)
        if grammar is not None:
            params = replace(params, allowed_tokens=await call.model.grammars.allowed_tokens(grammar))
        prompts = await call.prepare(
            lambda: prompts_of(call.model.llm, body.prompt, call.service.settings.max_prompt_tokens)
        )
        if len(prompts) * params.n > REQUEST_ANSWERS:
            raise ApiError(
                400, f"n: expected at most {REQUEST_ANSWERS} answers to all prompts, found more: lower it", param="n"
            )
        namespace = call.client.namespace(body.prompt_cache_key, body.cache_salt)
        await call.start(prompts, [params] * len(prompts), body.priority, namespace)
        answer = _Answer(body, call, params, prompts)
        if body.stream:
            return await call.stream(answer)
        return JSONResponse(answer.whole(await call.results()))


def _params(body: CompletionRequest, call: Call) -> SamplingParams:
    if body.best_of is not None and body.best_of != (body.n or 1):
        raise ApiError(400, f"best_of: expected n ({body.n or 1}), found {body.best_of}: leave it out", param="best_of")
    if body.stream and body.echo and (body.logprobs is not None or body.max_tokens == 0):
        raise ApiError(
            400, "echo: expected stream false with logprobs or max_tokens 0, found true: leave it out", param="echo"
        )
    if body.max_tokens == 0 and not body.echo:
        raise ApiError(400, "max_tokens: expected at least 1 without echo, found 0", param="max_tokens")
    longest = call.model.llm.max_seq_len if body.max_tokens is None else max(1, body.max_tokens)
    most = call.service.settings.max_new_tokens
    more: dict[str, Any] = {"max_new_tokens": longest if most is None else min(longest, most)}
    if body.logprobs is not None:
        more["logprobs"] = body.logprobs
        more["prompt_logprobs"] = body.logprobs if body.echo else None
    return sampling_params(body, call.model.llm.recommended_sampling, **more)


class _Answer:
    """The response to one request, whole or in events."""

    def __init__(
        self, body: CompletionRequest, call: Call, params: SamplingParams, prompts: Sequence[Sequence[int]]
    ) -> None:
        self._body, self._params, self._prompts = body, params, prompts
        self._tokenizer = call.model.llm.tokenizer
        self._texts = LogprobTexts(self._tokenizer)
        self._head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": body.model,
        }
        # Of a stream: characters of each answer so far, and the answers to each prompt that have ended.
        self._begun: dict[int, int] = {}
        self._ended: dict[int, list[Generation]] = {}
        self._templates: dict[int, EventTemplate] = {}

    def whole(self, answers: Sequence[Sequence[Generation]]) -> dict[str, Any]:
        choices = []
        for index, each in enumerate(answers):
            for number, answer in enumerate(each):
                choices.append(self._choice(index * self._params.n + number, answer))
        counted = usage(answers)
        if self._body.max_tokens == 0:
            generated = counted["completion_tokens"]
            counted |= {"completion_tokens": 0, "total_tokens": counted["total_tokens"] - generated}
        return {**self._head, "choices": choices, "usage": counted}

    def begin(self) -> bytes:
        return b""

    def write(self, batch: Sequence[Piece]) -> bytes:
        return b"".join([self._chunk(pieces) for pieces in by_choice(batch).values()])

    def end(self) -> bytes:
        options = self._body.stream_options
        if options is None or not options.include_usage:
            return DONE
        return event({**self._head, "choices": [], "usage": usage(list(self._ended.values()))}) + DONE

    def fail(self, error: ApiError) -> bytes:
        return event(error.openai())

    def _chunk(self, pieces: Sequence[Piece]) -> bytes:
        """The chunk for new pieces of one answer."""
        first, last = pieces[0], pieces[-1]
        index = first.index * self._params.n + first.choice
        text = "".join([piece.text for piece in pieces])
        begun = self._begun.get(index)
        self._begun[index] = (begun or 0) + len(text)
        if self._body.echo and begun is None:
            text = self._prompt_text(self._prompts[first.index]) + text
        if last.generation is not None:
            self._ended.setdefault(last.index, []).append(last.generation)
        elif self._params.logprobs is None:
            if index not in self._templates:
                self._templates[index] = EventTemplate(self._chunk_data(index, "", None, None), "choices", 0, "text")
            return self._templates[index].event(text)
        lists = None
        if self._params.logprobs is not None:
            tokens = [pair for piece in pieces for pair in zip(piece.token_ids, piece.logprobs or (), strict=False)]
            lists = self._texts.completion(tokens, self._params.logprobs, begun or 0)
        return event(self._chunk_data(index, text, lists, last.finish_reason))

    def _chunk_data(self, index: int, text: str, logprobs: Any, reason: str | None) -> dict[str, Any]:
        choice = {"index": index, "text": text, "logprobs": logprobs, "finish_reason": reason}
        return {**self._head, "choices": [choice]}

    def _choice(self, index: int, answer: Generation) -> dict[str, Any]:
        prompt = self._prompt_text(answer.prompt_token_ids) if self._body.echo else ""
        only_prompt = self._body.max_tokens == 0
        lists, top = None, self._params.logprobs
        if top is not None:
            tokens: list[Any] = [] if only_prompt else list(zip(answer.token_ids, answer.logprobs or (), strict=True))
            if self._body.echo and answer.prompt_logprobs is not None:
                tokens = [*zip(answer.prompt_token_ids, answer.prompt_logprobs, strict=True), *tokens]
            lists = self._texts.completion(tokens, top, 0)
        return {
            "index": index,
            "text": prompt if only_prompt else prompt + answer.text,
            "logprobs": lists,
            "finish_reason": "length" if only_prompt else answer.finish_reason,
        }

    def _prompt_text(self, ids: Sequence[int]) -> str:
        if isinstance(self._body.prompt, str):
            return self._body.prompt
        if self._tokenizer is None:
            raise RequestError("echo: expected a model with a tokenizer, found none: leave it out")
        return self._tokenizer.decode(ids, skip_special_tokens=self._params.skip_special_tokens)
