"""Data sets: where they come from, how they become batches. Nothing here knows a model."""
