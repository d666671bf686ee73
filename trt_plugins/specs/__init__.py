"""The operators' declarations, one file each."""
