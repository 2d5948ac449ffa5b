"""Which arguments does a command take, and what does it print?

Front: `main.main`.
Units and errors: A command prints what its API function returns. It ends with 0, with 2 for what a user can mend,
    and names file, line and key.
Laws:
    INV-52. Every command has a case (test_every_command_has_a_case).
    INV-53. A command ends with its files whatever its output is
       (test_a_command_ends_with_its_files_whatever_its_output_is).
Journey: `archsim sweep FILE` → `main.main` → `sweep` → `archsim.api.runs.sweep` → the page and the first sentence.
"""
