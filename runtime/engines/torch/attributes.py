"""The attributes of a node, read one by one, so that one that nothing reads is noticed."""

from __future__ import annotations

from typing import Any

import onnx_ir as ir

from hybridge.artifact.errors import EngineError

_REQUIRED = object()


class Attributes:
    """Attributes of ``node`` as plain values; strings are text."""

    def __init__(self, node: ir.Node) -> None:
        self.op_type = node.op_type
        self._left = {name: _plain(attribute) for name, attribute in node.attributes.items()}

    def take(self, name: str, default: Any = _REQUIRED) -> Any:
        """The value of an attribute; EngineError when it has neither a value nor a default."""
        value = self._left.pop(name, default)
        if value is _REQUIRED:
            raise EngineError(f"{self.op_type}: expected the attribute {name}, found none: export the checkpoint again")
        return value

    def expect(self, name: str, *values: Any) -> None:
        """EngineError unless the attribute has one of ``values`` (the first where it is absent)."""
        found = self.take(name, values[0])
        if found not in values:
            raise EngineError(
                f"{self.op_type}: the torch engine runs {name} {' or '.join(map(repr, values))}, found {found!r}: "
                "use `engine='onnxruntime'`"
            )

    def rest(self) -> dict[str, Any]:
        """All attributes that are left."""
        left, self._left = self._left, {}
        return left

    def finish(self) -> None:
        """EngineError when an attribute was not read."""
        if self._left:
            raise EngineError(
                f"{self.op_type}: the torch engine does not know its attribute {', '.join(self._left)}: "
                "use `engine='onnxruntime'`"
            )


def _plain(attribute: ir.Attr) -> Any:
    return attribute.value.decode() if isinstance(attribute.value, bytes) else attribute.value
