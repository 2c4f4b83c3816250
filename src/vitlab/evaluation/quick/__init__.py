"""Computing with a model's fast form, where there is work enough for it."""
