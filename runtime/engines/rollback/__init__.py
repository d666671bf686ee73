"""Rolling back draft tokens: deferred rows continue from the last accepted token, in the same way on every engine."""
