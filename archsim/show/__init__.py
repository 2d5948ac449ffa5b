"""How is an answer shown: as a page, in a terminal, a notebook and in print?

Front: `report.Report`, `page.write_report`, `figures.iterations`, `plots.Bars`, `plots.Points`, `rendering.render`,
    `units.significant`, `units.percent`, `units.interval`, `printed_figures.write_figure`, `reference.generate`.
Units and errors: Numbers have the digits of their range and a unit that people say. Pages are one file and work
    offline.
Laws:
    INV-49. Equal inputs give equal bytes (test_equal_inputs_give_equal_bytes).
    INV-50. The order of rows has no effect (test_does_not_depend_on_the_order_of_rows).
    INV-51. Everything that ran is named (test_names_everything_that_was_run).
Journey: Results → sections → figures as data → Vega-Lite in pages, notebooks and print.
"""
