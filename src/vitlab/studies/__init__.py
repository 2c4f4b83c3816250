"""The papers' tables and claims, at any scale."""
