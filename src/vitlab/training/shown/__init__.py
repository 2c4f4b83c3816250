"""What a run shows before its first step and while it trains."""
