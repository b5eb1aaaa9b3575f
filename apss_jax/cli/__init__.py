"""Parses flags, prints answers, chooses exit codes; nothing else in the product prints."""
