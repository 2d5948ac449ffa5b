"""GEMM tables whose columns m and n are swapped."""

import pandas as pd

WIDTH = 128  # of weights: features are multiples of it, and tokens are not
LEAST_SIZES = 4  # of a sweep over tokens
FEW_TOKENS = 64  # a sweep over tokens begins here or below; no expert is that narrow


def swapped_columns(rows: pd.DataFrame) -> str:
    """Why m (tokens) and n (output features) seem swapped in the rows of a file; '' if they do not.

    m has only widths of weights, and n takes several times as many values as m, small ones and odd ones among them.
    """
    sizes = rows[["m", "n", "k"]].astype(int).drop_duplicates()
    if (sizes["m"] % WIDTH).any() or not (sizes["n"] % WIDTH).any() or sizes["n"].min() > FEW_TOKENS:
        return ""
    along_m = sizes.groupby(["n", "k"])["m"].nunique().median()
    along_n = sizes.groupby(["m", "k"])["n"].nunique().median()
    if along_n < LEAST_SIZES or along_n < 2 * along_m:
        return ""
    widths = sorted(sizes["m"].unique())
    shown = ", ".join(f"{width}" for width in widths[:4]) + (", ..." if len(widths) > 4 else "")
    return (
        f"m is one of {len(widths)} widths of weights ({shown}), and n has {sizes['n'].nunique()} sizes from "
        f"{sizes['n'].min()} on: are the columns m (rows, tokens) and n (output features) swapped? Exchange their names"
    )
