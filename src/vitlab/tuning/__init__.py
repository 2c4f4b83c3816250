"""Which parameters a run trains."""
