"""What each kind of TensorRT layer computes, in torch; one module for each group of kinds."""
