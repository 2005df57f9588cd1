"""What a pipeline will need: formulas over measured constants. No I/O, no Spark, no server."""
