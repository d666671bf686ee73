"""``hybridge serve``: artifacts behind an HTTP API in the formats of OpenAI."""
