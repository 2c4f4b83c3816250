"""The weights of an ONNX file in fewer bits, and what that costs."""
