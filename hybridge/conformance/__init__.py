"""Checks that a server with OpenAI's API gives every request the tokens that it would get alone."""
