"""Code and rules that come with a checkpoint (chat templates, odd tokenizers) run here, in a process with limits."""
