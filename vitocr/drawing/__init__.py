"""Pictures of what a training came to: curves, readings, confusions, reliability."""
