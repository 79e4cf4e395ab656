"""What a model costs: parameters, multiply-accumulates, cache bytes."""
