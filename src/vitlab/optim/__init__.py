"""Optimizers, schedules, averages of weights."""
