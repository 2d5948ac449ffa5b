"""Which layers, experts and attention does a published model have?

Front: `spec.ModelSpec`, `attention.LayerSet`, `config_json.import_config`, `config_json.write_model`,
    `onnx.import_model`.
Units and errors: Sizes are in elements, weights in bytes of their precision. A configuration that is not understood
    is a `SpecError` with its key.
Laws:
    INV-17. Sizes equal those of the shipped model (test_sizes_equal_those_of_the_shipped_model).
    INV-18. Old and new names of a key are the same model
       (test_kinds_by_layer_under_their_newer_names_are_the_same_model).
Journey: `config.json` → `config_json.import_config` → its family in `config_families` → a model file.
"""
