"""The map of the test images in a report, and the labels that are likely wrong."""
