"""The tables that the command processors and D2D controllers keep: entries and bits, derived from their contents.

Paper: Yu et al., ISCA 2026 (arXiv 2510.05497v4), table II and section V. For 512 experts, 25 dies and 100 layers it
states 4.5 KB, 0.5 MB (50 MB in DRAM), 128 B and 4.25 KB, but no fields. The fields here are those that its text names:

- **expert distribution table**, 72 bits per expert: the id of its first die, in whole bytes (8), and one bit per die
  that says whether the die holds the expert, in whole 64-bit words (64).
- **heatmap**, 16 bits per pair of experts: a counter. One layer is on chip, all layers are in DRAM.
- **prediction table**, 2 bits per expert and die: ``cp_en`` and ``is_local``.
- **ATU**, 68 bits per expert and die: the place of the expert on the wafer (die id, and address in its HBM in units of
  a line: 5 + 31), the place of its copy in the local HBM (31), and a valid bit (1). 80 GB need 37 bits of byte
  address, less 6 for lines of 64 B.
"""

from dataclasses import dataclass
from enum import Enum
from math import ceil

BYTE_BITS = 8


class Storage(Enum):
    SRAM = "SRAM"
    REGISTERS = "registers"
    DRAM = "DRAM"


@dataclass(frozen=True)
class TableDesign:
    """Design parameters of the tables. Defaults are those of table II; Dojo's HBM is that of table I."""

    experts: int = 512  # rows of the tables; a model may have fewer
    layers: int = 100  # MoE layers whose heatmaps are kept in DRAM
    dies: int = 25  # of the wafer
    hbm_capacity_bytes: int = 80 * 10**9  # of one die
    counter_bits: int = 16  # of a heatmap entry
    granule_bytes: int = 64  # unit of address translation: a line, or a page
    presence_word_bits: int = 64  # presence bits are stored in whole words
    ports: int = 1  # read/write ports of every table
    table_port_bits: int = 72  # of the expert distribution table
    heatmap_port_bits: int = 512  # of the heatmap
    prediction_port_bits: int = 16  # of the prediction table of a die
    clock_hz: float = 2.5e9  # of tables and cores; fitted, see ``microarch.silicon.area``
    atu_entries: int | None = None  # of the ATU of a die; None: one for every expert

    def __post_init__(self) -> None:
        """Raises ValueError for sizes that are not positive."""
        for name, value in vars(self).items():
            if value is not None and value <= 0:
                raise ValueError(f"{name} must be above 0, got {value}")


@dataclass(frozen=True)
class HardwareTable:
    """A table of the decision hardware."""

    name: str  # as table II calls it
    storage: Storage  # what it is made of
    entries: int  # rows of one instance
    fields: tuple[tuple[str, int], ...]  # (name, bits) of an entry
    port_bits: int  # width of a port
    ports: int  # for reading and writing
    copies: int = 1  # instances on the wafer

    @property
    def bits_per_entry(self) -> int:
        return sum(bits for _, bits in self.fields)

    @property
    def bits(self) -> int:
        """The bits of one instance."""
        return self.entries * self.bits_per_entry

    @property
    def size_bytes(self) -> float:
        """The bytes of one instance."""
        return self.bits / BYTE_BITS


@dataclass(frozen=True)
class Shortfall:
    """A table that is too small for a model."""

    table: HardwareTable
    needed: HardwareTable

    @property
    def entries(self) -> int:
        return self.needed.entries - self.table.entries

    @property
    def bits(self) -> int:
        """The bits of one instance."""
        return self.needed.bits - self.table.bits


def bits_to_count(things: int) -> int:
    """Bits of an id for ``things``; at least 1."""
    return max(1, (things - 1).bit_length())


def tables_of(design: TableDesign) -> tuple[HardwareTable, ...]:
    """All tables: those of the dies, then those of the Global CP: the expert distribution table, one layer's heatmap on
    chip, and all layers' heatmaps in DRAM.
    """
    sram, ports, experts, dies = Storage.SRAM, design.ports, design.experts, design.dies
    die_id_bits = bits_to_count(dies)
    granule = bits_to_count(ceil(design.hbm_capacity_bytes / design.granule_bytes))  # address in one die's HBM
    predicted = ("cp_en", 1), ("is_local", 1)
    translated = ("die", die_id_bits), ("remote granule", granule), ("local granule", granule), ("valid", 1)
    held = (
        ("first die", BYTE_BITS * ceil(die_id_bits / BYTE_BITS)),
        ("held by die", ceil(dies / design.presence_word_bits) * design.presence_word_bits),
    )
    heat, heat_bits = (("times seen", design.counter_bits),), design.heatmap_port_bits
    return (
        HardwareTable(
            "prediction table", Storage.REGISTERS, experts, predicted, design.prediction_port_bits, ports, dies
        ),
        HardwareTable(
            "ATU", sram, design.atu_entries or experts, translated, sum(bits for _, bits in translated), ports, dies
        ),
        HardwareTable("expert distribution table", sram, experts, held, design.table_port_bits, ports),
        HardwareTable("heatmap cache", sram, experts**2, heat, heat_bits, ports),
        HardwareTable("heatmap", Storage.DRAM, design.layers * experts**2, heat, heat_bits, ports),
    )


def shortfalls(built: TableDesign, needed: TableDesign) -> tuple[Shortfall, ...]:
    """The tables of ``built`` that have fewer entries than ``needed`` requires."""
    pairs = zip(tables_of(built), tables_of(needed), strict=True)
    return tuple(Shortfall(table, other) for table, other in pairs if other.entries > table.entries)
