"""The live page: a run's folder in a browser, while the run goes on and afterwards."""
