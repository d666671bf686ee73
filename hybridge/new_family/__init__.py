"""Drafts a new family: its file and its registry rows, from transformers' declarations."""

from hybridge.new_family.draft import FamilyDraft, draft_family, write_family

__all__ = ["FamilyDraft", "draft_family", "write_family"]
