"""Taking back draft tokens: the states of deferred rows go on from the last accepted token, on every engine alike."""
