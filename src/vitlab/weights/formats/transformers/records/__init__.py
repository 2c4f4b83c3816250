"""The families of transformers, one record each; families with alike names are made from others."""
