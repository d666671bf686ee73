"""Speed, memory and accuracy of the way from checkpoint to tokens. Each benchmark prints one JSON document."""
