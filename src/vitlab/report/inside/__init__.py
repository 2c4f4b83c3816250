"""Inside a model, as pictures, numbers and one page: `vitlab inspect`."""
