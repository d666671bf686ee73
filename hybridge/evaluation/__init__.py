"""How close two models are in what they predict: perplexity and KL divergence over a text."""
