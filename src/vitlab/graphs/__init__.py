"""Models as files that run without this package: ONNX, PyTorch's packages, a web page."""
