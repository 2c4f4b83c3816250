"""Tests of the programs in benchmarks/: `make test-benchmarks`."""
