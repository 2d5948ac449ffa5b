"""From measurements to parameters: schema, adapters of public data, fits, validation, and scripts that measure."""
