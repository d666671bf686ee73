"""The benchmarks work, on tiny sizes and without a look at the clock."""
