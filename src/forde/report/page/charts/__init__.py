"""The report's charts, as Vega-Lite specifications that altair makes and checks."""
