"""Decoding: bytes to pixels."""
