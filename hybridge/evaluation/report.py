"""The result of an evaluation."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class ModelScore:
    """One model: its folder, what computed it, bytes of its weights as stored, and its perplexity."""

    path: str
    computed_by: str
    weight_bytes: int
    perplexity: float


@dataclass(frozen=True)
class EvaluateReport:
    """A reference and another model over the windows of a text.

    tokens: of the windows; positions: those whose next token was scored. KL divergences are of the other model's
    distribution from the reference's, in nats: their mean, and what 99.9 % of the positions do not exceed.
    same_top: the share of positions at which both find the same token the most likely one.
    """

    reference: ModelScore
    other: ModelScore
    mean_kl_divergence: float
    kl_divergence_999: float
    same_top: float
    window: int
    windows: int
    tokens: int
    positions: int
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object of the fields."""
        return asdict(self)

    def render(self) -> Table:
        """A table for a terminal."""
        from rich.table import Table

        title = f"{self.windows} windows of {self.window} tokens, {self.positions} positions scored"
        table = Table(title=title, title_justify="left")
        table.add_column("")
        for name in ("reference", "other"):
            table.add_column(name, justify="right", overflow="fold")
        one, two = self.reference, self.other
        size = two.weight_bytes / one.weight_bytes if one.weight_bytes else 1.0
        for row in (
            ("model", one.path, two.path),
            ("computed by", one.computed_by, two.computed_by),
            ("bytes of weights", f"{one.weight_bytes}", f"{two.weight_bytes} ({size:.3f})"),
            ("perplexity", f"{one.perplexity:.4f}", f"{two.perplexity:.4f}"),
            ("mean KL divergence", "", f"{self.mean_kl_divergence:.6f}"),
            ("99.9 % KL divergence", "", f"{self.kl_divergence_999:.6f}"),
            ("same top token", "", f"{self.same_top:.3%}"),
        ):
            table.add_row(*row)
        return table
