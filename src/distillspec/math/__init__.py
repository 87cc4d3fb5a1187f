"""Pure functions on tensors: no models, no files, no random numbers of their own."""
