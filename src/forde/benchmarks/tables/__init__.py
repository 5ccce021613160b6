"""Estimators for tables against scikit-learn's: data sets, peers, cells in files of their own, and what follows.

A *cell* is one peer on one data set, over several splits. Data flows `data_sets` and `peers` → `cells` → `summary`.
"""
