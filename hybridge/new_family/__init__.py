"""The start of a new family: its file and its rows, from what transformers declares."""

from hybridge.new_family.draft import FamilyDraft, draft_family, write_family

__all__ = ["FamilyDraft", "draft_family", "write_family"]
