"""The loss around a model's weights: its Hessian, its spectrum, its landscape and its sharpness."""
