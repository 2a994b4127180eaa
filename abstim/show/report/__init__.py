"""`abstim report`: result files in, one self-contained HTML page out.

`page` recognises the files and lays the sections out; `launches`, `sweep`, `validation`, `benchmark`, `sampling` and
`cold_start` turn each into a Section of Charts (`chart`). Bokeh draws: its bundle is a quarter of plotly's (1.3 MB
against 4.8), and its charts of one page share data, so points selected in one are selected in all."""

from abstim.show.report.page import write_report

__all__ = ["write_report"]
