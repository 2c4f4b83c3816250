"""Evaluation: metrics, features, probes, intervals; read infer.py, then metrics.py."""
