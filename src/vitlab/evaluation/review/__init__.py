"""What a person should look at again: labels that are likely wrong, and a map of the images."""
