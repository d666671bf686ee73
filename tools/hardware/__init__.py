"""Parts of ``hw_check.py``."""
