"""Bodies of requests and responses. Unknown fields are refused, and values are not converted."""
