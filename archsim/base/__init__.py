"""What does every room need: quantities with units, YAML with line numbers, tables, files, compiled kernels, the
options of each command?

Front: `errors.SpecError`, `answer.Answer`, `quantities.parse_quantity`, `quantities.format_quantity`,
    `fields.Spec`, `yaml.read_yaml`, `files.write_text`, `tables.Shown`, `compiled.kernel`,
    `own_code.import_function`, `sums.sum`, `host.available_cores`.
Units and errors: Quantities become base units: ns, bytes, FLOP, W, USD. An error that a user can mend is an
    `ArchsimError`; a `SpecError` names file, line and key.
Laws:
    INV-12. What is written reads back exactly (test_written_quantity_reads_back_exactly).
    INV-13. Compiled code for another processor finds the same bits
       (test_shipped_code_finds_the_same_bits_as_code_for_this_processor_and_nothing_is_compiled).
Journey: `80 GB` in a file → `yaml.read_yaml` keeps its line → `fields.Spec` checks it → `quantities.parse_quantity`
    → 80e9 bytes.
"""
