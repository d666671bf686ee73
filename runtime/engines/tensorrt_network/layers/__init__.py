"""TensorRT's layers computed in torch, one module for each group of kinds."""
