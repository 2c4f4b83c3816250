"""Pages, each one HTML file: `page.py` says what they are made of; read it first."""
