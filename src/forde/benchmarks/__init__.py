"""What is measured: training steps, predictions, growth with size, the repulsion alone, corruptions and more.

`forde bench` runs most of it; `communication`, `input_pipeline` and `page_faults` run with `python -m`. Times are
compared as ratios inside one run; those that the documentation cites are in the folder benchmarks/results.
"""
