"""The result of a quantisation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

from hybridge.quantization.matrix import MatrixReport
from hybridge.quantization.mix import GroupReport

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class QuantizeReport:
    """Bytes of all weights before and after, and the scheme and error of each quantised matrix."""

    out: str
    format: str
    method: str
    checkpoint_bytes: int
    weight_bytes: int
    matrices: tuple[MatrixReport, ...]
    notes: tuple[str, ...]
    groups: tuple[GroupReport, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        return asdict(self)

    def render(self) -> Table:
        """A table of schemes for a terminal."""
        from rich.table import Table

        share = self.weight_bytes / self.checkpoint_bytes
        title = f"{self.out}: {self.weight_bytes} bytes of weights ({share:.3f} of the checkpoint's)"
        table = Table(title=title, title_justify="left")
        for name in ("weights", "matrices", "numbers", "bits each", "largest error"):
            table.add_column(name, justify="left" if name == "weights" else "right")
        for scheme in dict.fromkeys(each.scheme for each in self.matrices):
            own = [each for each in self.matrices if each.scheme == scheme]
            count = sum(each.weights for each in own)
            bits = 8 * sum(each.nbytes for each in own) / count
            table.add_row(scheme, str(len(own)), str(count), f"{bits:.2f}", f"{max(e.error for e in own):.4f}")
        return table
