"""Memory that is stated in tiers becomes that of the part that has it."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from archsim.base.fields import KeyProblem

# What the memory of a die keeps; one memory keeps all of it in all times.
KEPT = ("weights", "kv", "activations")
# Of a read, ns, where a file gives none; assumed, stacks as of the other wafers.
LATENCIES_NS: Mapping[str, float] = MappingProxyType({
    "hbm2e": 300.0, "hbm3": 300.0, "hbm3e": 300.0, "hbm4": 300.0, "gddr7": 300.0, "lpddr5x": 350.0, "cxl": 700.0,
    "sram": 10.0,
})  # fmt: skip


def with_owner(given: Any) -> Any:
    """A system's keys with the one ``memory`` that keeps weights, KV cache and activations as ``hbm``. Raises
    KeyProblem for two that keep the same, and where different ones keep them.
    """
    tiers = given.get("memory") if isinstance(given, dict) else None
    if not isinstance(tiers, list | tuple) or not all(isinstance(each, dict) for each in tiers):
        return given
    for at, tier in enumerate(tiers):
        for key, example in (("kind", "hbm3e"), ("capacity", "80 GB"), ("bandwidth", "3.35 TB/s")):
            if key not in tier and f"{key}_bytes" not in tier and f"{key}_bytes_per_s" not in tier:
                raise KeyProblem(("memory", at, key), f"required key is missing; expected a value such as {example}")
    owners: dict[str, list[int]] = {
        what: [at for at, tier in enumerate(tiers) if what in (tier.get("keeps") or ())] for what in KEPT
    }
    if "hbm" in given:
        for what, at in ((what, each[0]) for what, each in owners.items() if each):
            raise KeyProblem(
                ("memory", at, "keeps"), f"{what}: two memories keep them, this one and hbm. Leave out hbm, or keeps"
            )
        return given
    if not tiers:
        return given
    if not any(owners.values()):
        owners = {what: [0] for what in KEPT}
    for what, of in owners.items():
        if len(of) > 1:
            both = " and ".join(f"memory.{at}" for at in of)
            raise KeyProblem(("memory", of[1], "keeps"), f"{what}: two memories keep them, {both}. Name one")
    whose = {what: of[0] for what, of in owners.items() if of}
    (first, *_) = whose.values()
    apart = next((what for what in KEPT if whose.get(what, first) != first), None)
    if apart is not None:
        raise KeyProblem(
            ("memory", whose[apart], "keeps"),
            f"one memory keeps weights, KV cache and activations in all times, and {apart} are kept separate from the "
            f"rest here. Let memory.{first} keep all three; experts in memory of the host are serving's offload",
        )
    own = {key: value for key, value in tiers[first].items() if key != "keeps"}
    if "latency" not in own:
        own["latency"] = f"{LATENCIES_NS.get(str(own['kind']), 300.0):g} ns"
    rest = [tier for at, tier in enumerate(tiers) if at != first]
    return {key: value for key, value in given.items() if key != "memory"} | {"hbm": own} | (
        {"memory": rest} if rest else {}
    )  # fmt: skip
