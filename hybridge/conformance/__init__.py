"""Whether a server of OpenAI's API gives every request the tokens that it would get alone."""
