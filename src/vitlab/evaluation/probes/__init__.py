"""Probes of frozen features: few-shot, nearest neighbors, logistic regression."""
