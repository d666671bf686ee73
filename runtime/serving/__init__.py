"""From requests to tokens on a paged engine: plans are executed, logits sampled, pieces handed out."""
