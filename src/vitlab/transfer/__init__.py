"""Transfer: fine-tuning, probes, soups, many tasks on one trunk."""
