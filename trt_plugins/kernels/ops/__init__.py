"""One planner an operator: from the layouts of a call to the kernels that run it."""
