"""An axis that changes no number says so; one that changes any does not."""

from types import SimpleNamespace

from archsim.studies.exploration.analysis import idle_axes


def test_an_axis_that_changes_no_number_is_told():
    groups = [SimpleNamespace(axes=[SimpleNamespace(name=name)]) for name in ("dead", "alive")]
    points = [SimpleNamespace(choice=(dead, alive)) for dead in range(2) for alive in range(2)]
    rows = [{"policy": "ep", "run": str(at), "decode_ns": 1.0 + each.choice[1]} for at, each in enumerate(points)]
    plan = SimpleNamespace(sweep=SimpleNamespace(groups=groups))
    assert [note.partition(":")[0] for note in idle_axes(plan, points, rows)] == ["dead"]
    assert list(idle_axes(plan, points[:1], rows[:1])) == []
