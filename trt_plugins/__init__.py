"""The ``trt_edgellm`` operators: one declaration each, and every face that is derived from it."""
