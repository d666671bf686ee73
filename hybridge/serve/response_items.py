"""Items of a response, and the events of a stream of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from hybridge.runtime.generation import Generation
from hybridge.serve.blocks import CALL, DELTA, REASONING, START, Block, BlockStep
from hybridge.serve.compaction import opaque
from hybridge.serve.messages import arguments_object

Data = dict[str, Any]


def item_of(block: Block, status: str, encrypts: bool = False) -> Data:
    """The item of ``block``, as far as it is known. encrypts: reasoning also has its "encrypted_content"."""
    if block.kind == CALL:
        return {
            "type": "function_call",
            "id": f"fc_{block.key}",
            "call_id": f"call_{block.key}",
            "name": block.name,
            "arguments": block.text,
            "status": status,
        }
    content = [_part(block)] if block.text else []
    if block.kind == REASONING:
        more = {"encrypted_content": opaque(block.text)} if encrypts else {}
        item = {"type": "reasoning", "id": f"rs_{block.key}", "summary": [], "content": content, "status": status}
        return item | more
    return {"type": "message", "id": f"msg_{block.key}", "role": "assistant", "status": status, "content": content}


def message_of(blocks: Iterable[Block]) -> Data:
    """The answer as a message of the assistant, for the template of a later turn."""
    message: Data = {"role": "assistant", "content": ""}
    for block in blocks:
        if block.kind == CALL:
            function = {"name": block.name, "arguments": arguments_object(block.text)}
            call = {"id": f"call_{block.key}", "type": "function", "function": function}
            message.setdefault("tool_calls", []).append(call)
        elif block.kind == REASONING:
            message["reasoning_content"] = message.get("reasoning_content", "") + block.text
        else:
            message["content"] += block.text
    return message


def usage_of(answer: Generation, reasoning_tokens: int) -> Data:
    """The usage of one answer."""
    prompt, new = len(answer.prompt_token_ids), len(answer.token_ids)
    return {
        "input_tokens": prompt,
        "input_tokens_details": {"cached_tokens": answer.cached_tokens},
        "output_tokens": new,
        "output_tokens_details": {"reasoning_tokens": reasoning_tokens},
        "total_tokens": prompt + new,
    }


def item_events(step: BlockStep, status: str, encrypts: bool = False) -> Iterator[Data]:
    """The events of ``step``, each with its "type". ``status``: of an item that ends. encrypts: as of ``item_of``."""
    block = step.block
    where = {"item_id": item_of(block, status)["id"], "output_index": block.index}
    part, name = {**where, "content_index": 0}, _name(block)
    if step.kind == START:
        empty = Block(block.index, block.kind, block.name, "", block.key)
        item = item_of(empty, "in_progress")
        yield {"type": "response.output_item.added", "output_index": block.index, "item": item}
        if block.kind != CALL:
            yield {"type": "response.content_part.added", **part, "part": _part(empty)}
    elif step.kind == DELTA:
        more: Data = {"logprobs": []} if name == "output_text" else {}
        yield {"type": f"response.{name}.delta", **(where if block.kind == CALL else part), "delta": step.text, **more}
    else:
        if block.kind == CALL:
            arguments = {"name": block.name, "arguments": block.text}
            yield {"type": f"response.{name}.done", **where, **arguments}
        else:
            more = {"logprobs": []} if name == "output_text" else {}
            yield {"type": f"response.{name}.done", **part, "text": block.text, **more}
            yield {"type": "response.content_part.done", **part, "part": _part(block)}
        item = item_of(block, status, encrypts)
        yield {"type": "response.output_item.done", "output_index": block.index, "item": item}


def _name(block: Block) -> str:
    if block.kind == CALL:
        return "function_call_arguments"
    return "reasoning_text" if block.kind == REASONING else "output_text"


def _part(block: Block) -> Data:
    if block.kind == REASONING:
        return {"type": "reasoning_text", "text": block.text}
    return {"type": "output_text", "text": block.text, "annotations": [], "logprobs": []}
