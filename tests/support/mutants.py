"""Mutants of files: trees with a value replaced, left out, doubled or moved; bytes and lines damaged."""

import copy
import json
import re

ODD = (
    None, True, -1, 0, 1, 3, 2**31, 2**63, 10**18, "9" * 5000, "1" + "0" * 90, 1e300, 1e-300, 1.5, ".nan", ".inf",
    "1e400", "1e999999999", "1e-999999999 B", "1e99999999999999999999 ns", "1e9999999 TB/s", "9" * 5000 + " B", "0 B",
    "-1 ns", "1 KB", "5x5", "99999x99999", "1e3x1e3", "", "x", "../x", ".", "/", "x:y", "os:getcwd", "x" * 5000,
    "a\0b", "\udcff", "/dev/stdin", "/dev/zero", "/dev/stdin.yaml", "dojo", "physical", [], [[]], [-1], ["x"], {},
    {"x": 1}, {"name": {}}, {"from": 1, "to": 2}, {"from": 1, "to": 10**12, "step": 1}, {"like": {}}, {"set": []},
)  # fmt: skip
"""What a value is replaced with. In YAML, text is written as it stands: YAML decides what it is."""
ODD_TEXT = (
    b"", b"-1", b"0", b"1e300", b"1e-300", b"nan", b"inf", b"99999999999999999999", b"9" * 400, b"1.5", b"x", b"\xff",
    b"\0", b'"', b"=1+1", b"\xed\xa0\x80", b"null", b"true", b"[]", b"{}", b"1,1", b"[" * 3000, b"1_000", b"\xd9\xa3",
)  # fmt: skip
_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:e[+-]?\d+)?")


def paths(tree, at=()):
    """Key paths of all values of a tree."""
    items = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, value in items:
        yield (*at, key)
        yield from paths(value, (*at, key))


def mutated(tree, rng):
    """A copy with one value replaced, left out, doubled or taken from elsewhere in the tree."""
    tree = copy.deepcopy(tree)
    places = list(paths(tree))
    *above, last = rng.choice(places)
    target = tree
    for key in above:
        target = target[key]
    match rng.randrange(8):
        case 0:
            del target[last]
        case 1 if isinstance(target, list):
            target.append(copy.deepcopy(target[last]))
        case 1:
            target[rng.choice((f"{last}x", "name", "like", "x"))] = target.pop(last)
        case 2:
            other = tree
            for key in rng.choice(places):
                other = other[key]
            target[last] = copy.deepcopy(other)
        case _:
            target[last] = rng.choice(ODD)
    return tree


def mutated_json(content: bytes, rng) -> bytes:
    """A line of JSON, or the whole, as a mutant of its tree; a number or a word of other text replaced."""
    lines = content.splitlines()
    try:
        trees = [json.loads(line) for line in lines] if len(lines) > 1 else [json.loads(content)]
    except ValueError:
        trees = [json.loads(content)]
    at = rng.randrange(len(trees))
    trees[at] = mutated(trees[at], rng) if isinstance(trees[at], dict | list) and trees[at] else rng.choice(ODD)
    return "\n".join(map(json.dumps, trees)).encode("utf-8", "surrogatepass")


ODD_OF_CONFIG = (
    None, True, False, -1, 0, 1, -(2**63), 10**30, 2.5, float("inf"), float("-inf"), float("nan"), "x", "32", "", [],
    [None], ["x"], [1, 2], {}, {"x": 1},
)  # fmt: skip
"""What a key of a ``config.json`` is replaced with."""
SPELLINGS = (
    ("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"),
    ("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k"), ("n_group", "num_expert_group"),
    ("n_shared_experts", "num_shared_experts", "num_shared_expert"), ("first_k_dense_replace", "num_dense_layers"),
    ("num_key_value_heads", "num_attention_groups"), ("rope_scaling", "rope_parameters"), ("torch_dtype", "dtype"),
    ("linear_attention", "mamba"), ("full_attention", "attention"), ("max_position_embeddings", "max_seq_len"),
)  # fmt: skip


def mutated_config(content: bytes, rng) -> bytes:
    """A ``config.json`` with a key of its language model left out, impossible, scaled or spelt in another way, a list
    that is too short or too long, or the language model's keys moved inside or outside.
    """
    tree = json.loads(content)
    inner = next((tree[name] for name in ("text_config", "llm_config") if isinstance(tree.get(name), dict)), tree)
    key = rng.choice(list(inner))
    lists = [name for name, value in inner.items() if isinstance(value, list) and value]
    match rng.randrange(12):
        case 0 | 1:
            del inner[key]
        case 2 | 3 | 4 | 5:
            inner[key] = rng.choice(ODD_OF_CONFIG)
        case 6 if isinstance(inner[key], int | float):
            inner[key] = rng.choice((inner[key] * 2, inner[key] // 2, inner[key] + 1, -inner[key], inner[key] * 1e9))
        case 7 if lists:
            found = inner[rng.choice(lists)]
            at = rng.randrange(len(found))
            match rng.randrange(4):
                case 0:
                    del found[at:]
                case 1:
                    found += found[:4] or [0]
                case 2:
                    found[at] = rng.choice(ODD_OF_CONFIG)
                case _:
                    found.insert(at, copy.deepcopy(found[at]))
        case 8:
            group = rng.choice([group for group in SPELLINGS if set(group) & set(inner)] or [(key, f"{key}s")])
            name = next(each for each in group if each in inner)
            inner[rng.choice(group)] = inner.pop(name)
        case 9 if inner is tree:
            tree = {"model_type": inner.get("model_type"), "text_config": inner}
        case 9:
            tree = inner | {"model_type": inner.get("model_type", tree.get("model_type"))}
        case 10:
            inner[rng.choice([each for group in SPELLINGS for each in group])] = rng.choice(ODD_OF_CONFIG)
        case _:
            return mutated_json(content, rng)
    return json.dumps(tree).encode("utf-8", "surrogatepass")


def mutated_text(content: bytes, rng) -> bytes:
    """A number replaced, a line doubled, dropped or moved, a header renamed; of tables and logs."""
    lines = content.split(b"\n")
    at, other = rng.randrange(len(lines)), rng.randrange(len(lines))
    match rng.randrange(7):
        case 0:
            lines.insert(other, lines[at])
        case 1:
            del lines[at]
        case 2:
            lines[at], lines[other] = lines[other], lines[at]
        case 3:
            cells = lines[at].split(b",")
            cells[rng.randrange(len(cells))] = rng.choice(ODD_TEXT)
            lines[at] = b",".join(cells)
        case 4:
            lines[at] += b"," + rng.choice(ODD_TEXT)
        case _:
            numbers = list(_NUMBER.finditer(content))
            if numbers:
                found = rng.choice(numbers)
                return content[: found.start()] + rng.choice(ODD_TEXT) + content[found.end() :]
    return b"\n".join(lines)


def damaged(content: bytes, rng) -> bytes:
    """Some bytes changed, put in, left out or doubled, or the end cut off."""
    changed = bytearray(content)
    for _ in range(rng.randint(1, 4)):
        at = rng.randrange(max(1, len(changed)))
        match rng.randrange(6):
            case 0:
                changed[at:at] = rng.choice(ODD_TEXT)
            case 1:
                del changed[at : at + rng.randint(1, 30)]
            case 2:
                changed[at:at] = changed[at : at + rng.randint(1, 60)]
            case 3 if rng.random() < 0.2:
                del changed[at:]
            case _:
                changed[at : at + 1] = bytes([rng.randrange(256)])
    return bytes(changed)
