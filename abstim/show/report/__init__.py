"""`abstim report`: result files in, one self-contained HTML page out.

`result_files` recognises the files; `launches`, `sweep`, `validation`, `benchmark`, `sampling`, `cold_start` and others
turn each into a Section of Charts (`chart`); `page` lays them out. Bokeh draws: its bundle is a quarter of plotly's
(1.3 MB against 4.8), and its charts of one page share data, so points selected in one are selected in all.
"""

from abstim.show.report.page import write_report

__all__ = ["write_report"]
