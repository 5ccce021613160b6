"""The report of trained and evaluated runs: one HTML file that needs nothing else."""

from forde.report.page.writing import write_report_page

__all__ = ["write_report_page"]
