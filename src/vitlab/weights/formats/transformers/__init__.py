"""Hugging Face transformers' folders."""
