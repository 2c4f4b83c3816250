"""From a model to a repository on the Hugging Face Hub, with its card."""
