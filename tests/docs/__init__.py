"""Tests of the documentation: what it prints runs, and what it names exists."""
