"""``archsim compare``: options as well as each can be used, designs at one batch, or deployments, side by side."""

import argparse

from archsim.base import verbs
from archsim.cli import arguments, compare


def test_another_comparison_has_another_folder():
    parser = argparse.ArgumentParser()
    arguments.add_options(parser, verbs.COMPARE)
    given = ["", "--in=dojo", "--in=wide", "--batch=8", "--batch=9", "--model=toy", "--system=toy2", "--set=a.b=1"]
    names = {compare._folder_name(parser.parse_args(["configs/x.yaml", "y", *each.split()])) for each in given}
    assert len(names) == len(given) and {"x-y", "dojo-x-y", "x-y-8", "x-y-a.b=1"} < names
