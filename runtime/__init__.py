"""From artifact to tokens: engines, caches, sampling and generation. Needs neither torch nor transformers."""
