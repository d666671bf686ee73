"""Engine builds: an artifact in, a TensorRT engine out. Imports TensorRT only in the building process, torch never."""
