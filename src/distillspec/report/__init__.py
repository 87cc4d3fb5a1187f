"""Figures and a page of stored results. Reads run directories, computes nothing, needs no torch."""

from distillspec.report.html import report

__all__ = ["report"]
